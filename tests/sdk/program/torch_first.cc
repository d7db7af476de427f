// A header of libtorch's may come before Muster's. Compiled, not linked: the macros of libtorch's
// logging, which other programs must not get from Muster, are in this one by its own wish.
#include <ATen/autocast_mode.h>
#include <muster/muster.h>

torch::Tensor doubled(const torch::Tensor& value) { return value + value; }
