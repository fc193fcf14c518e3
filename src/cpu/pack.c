/* Packing: an operand of any layout and storage type into panels of the compute type. */
#include "cpu.h"

/* Rows packed by one work item: enough to be worth a thread, few enough to share a tall matrix. */
enum { PACK_ROWS = 512 };

typedef struct pack_job {
    const eg_cpu_kernel *kernel;
    const eg_operand *x;
    eg_panels panels;
    int64_t bands;
    char *to;
} pack_job;

static void pack_band(void *arg, int64_t index, int thread) {
    (void)thread;
    const pack_job *job = arg;
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t band = index % job->bands, panel = index / job->bands % job->panels.panels;
    const int64_t item = index / job->bands / job->panels.panels;
    const int64_t row = band * PACK_ROWS, col = panel * kernel->nr;
    const bool last = band == job->bands - 1;
    const int64_t left = job->x->rows - row, rows = last ? left : PACK_ROWS;
    const int64_t cols = job->x->cols - col < kernel->nr ? job->x->cols - col : kernel->nr;
    const int64_t element = ((item * job->panels.panels + panel) * job->panels.rows + row) * kernel->nr;
    kernel->load(job->to + element * (int64_t)eg_dtype_size(kernel->compute),
                 eg_cpu_at(job->x, item, row, col), job->x->dtype, job->x->row_stride, job->x->col_stride,
                 rows, cols, last ? job->panels.rows - row : rows);
}

void eg_cpu_pack_panels(const eg_cpu_kernel *kernel, int threads, const eg_operand *x, int64_t items,
                        void *panels) {
    pack_job job = {
        .kernel = kernel, .x = x, .panels = eg_cpu_panels(kernel, x->rows, x->cols), .to = panels};
    if (x->rows == 0 || x->cols == 0) return;
    job.bands = (x->rows + PACK_ROWS - 1) / PACK_ROWS;
    const int64_t least_work = 1 << 14;
    if (x->rows * x->cols < least_work / (items > 0 ? items : 1)) threads = 1;
    eg_cpu_parallel(threads, job.bands * job.panels.panels * items, pack_band, &job);
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
    eg_cpu_pack_panels(step->kernel, run->threads, &x, items, eg_cpu_region(run, step->buffer));
}
