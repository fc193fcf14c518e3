/* Packing: an operand of any layout and storage type into panels of the compute type. */
#include "cpu.h"

/* Rows packed by one work item, panel after panel: few enough that the pages of a row-major band are still
 * at hand when the next panel reads on in them; a column-major one is read down its columns, where longer
 * is better. */
enum { ROW_BAND = 64, COLUMN_BAND = 256 };

typedef struct pack_job {
    const eg_cpu_kernel *kernel;
    const eg_operand *x;
    eg_panels panels;
    int64_t band, bands;
    char *to;
} pack_job;

static void pack_band(void *arg, int64_t index, int thread) {
    (void)thread;
    const pack_job *job = arg;
    const eg_operand *x = job->x;
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t item = index / job->bands, row = index % job->bands * job->band;
    const bool last = row + job->band >= x->rows;
    const int64_t rows = last ? x->rows - row : job->band, padded = last ? job->panels.rows - row : rows;
    for (int64_t panel = 0; panel < job->panels.panels; panel++) {
        const int64_t col = panel * kernel->nr,
                      cols = x->cols - col < kernel->nr ? x->cols - col : kernel->nr;
        const int64_t element = ((item * job->panels.panels + panel) * job->panels.rows + row) * kernel->nr;
        kernel->load(job->to + element * (int64_t)eg_dtype_size(kernel->compute),
                     eg_cpu_at(x, item, row, col), x->dtype, x->row_stride, x->col_stride, rows, cols,
                     padded);
    }
}

static void pack_panels(const eg_cpu_kernel *kernel, int threads, const eg_operand *x, int64_t items,
                        void *panels) {
    if (x->rows == 0 || x->cols == 0) return;
    pack_job job = {.kernel = kernel,
                    .x = x,
                    .panels = eg_cpu_panels(kernel, x->rows, x->cols),
                    .band = x->col_stride == 1 ? ROW_BAND : COLUMN_BAND,
                    .to = panels};
    job.bands = (x->rows + job.band - 1) / job.band;
    eg_cpu_parallel(threads, job.bands * items, pack_band, &job);
}

static eg_operand transpose(eg_operand x) {
    const eg_operand was = x;
    x.rows = was.cols;
    x.cols = was.rows;
    x.row_stride = was.col_stride;
    x.col_stride = was.row_stride;
    return x;
}

void eg_cpu_pack(const eg_cpu_run *run, const eg_step *step) {
    const eg_problem *p = run->problem;
    eg_operand x = p->operands[step->buffer == EG_BUFFER_A ? EG_OP_A : EG_OP_B];
    if (x.data == NULL) return; /* only where it has no elements */
    if (step->buffer == EG_BUFFER_BT) x = transpose(x);
    const int64_t items = x.batch_stride == 0 && p->batch > 0 ? 1 : p->batch;
    pack_panels(step->kernel, step->threads, &x, items, eg_cpu_region(run, step->buffer));
}
