/* The kernels of hopper_relay.cuh: A·B with act', finished beside the next tile's products. */
#include "hopper_relay.cuh"

EG_HOPPER_RELAY_KERNELS(bf16, true)
EG_HOPPER_RELAY_KERNELS(f16, false)
