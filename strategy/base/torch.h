// libtorch, without the macros of its logging library leaking into what includes this: CHECK, LOG
// and all their family are what they were before. A program that wants glog's own includes it
// first.
//
// Threading: libtorch's own rules.
#pragma once

#include "common/torch/torch_macros_begin.inc"
//
#include <torch/torch.h>
//
#include "common/torch/torch_macros_end.inc"
