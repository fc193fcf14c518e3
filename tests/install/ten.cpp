#include <epigrad/epigrad.h>

int main() {
    float a[2] = {1, 2}, b[2] = {3, 4}, y = 0;
    eg_context *cpu = nullptr;
    eg_layer layer = {sizeof layer, 1, 2, 1, 1}; // m, k, n, batch
    eg_forward_args args = {sizeof args};
    args.a.data = a, args.b.data = b, args.y.data = &y;
    if (eg_open(nullptr, &cpu) != EG_OK || eg_forward(cpu, &layer, &args) != EG_OK) return 2;
    return eg_close(cpu), y == 11 ? 0 : 1;
}
