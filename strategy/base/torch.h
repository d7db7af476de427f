// libtorch, without the macros of its logging library leaking into what includes this: CHECK, LOG
// and their like are what they were before.
#pragma once

#pragma push_macro("CHECK")
#pragma push_macro("CHECK_EQ")
#pragma push_macro("CHECK_NE")
#pragma push_macro("CHECK_LT")
#pragma push_macro("CHECK_LE")
#pragma push_macro("CHECK_GT")
#pragma push_macro("CHECK_GE")
#pragma push_macro("DCHECK")
#pragma push_macro("LOG")
#pragma push_macro("VLOG")
#pragma push_macro("DLOG")
#include <torch/torch.h>
#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LT
#undef CHECK_LE
#undef CHECK_GT
#undef CHECK_GE
#undef DCHECK
#undef LOG
#undef VLOG
#undef DLOG
#pragma pop_macro("DLOG")
#pragma pop_macro("VLOG")
#pragma pop_macro("LOG")
#pragma pop_macro("DCHECK")
#pragma pop_macro("CHECK_GE")
#pragma pop_macro("CHECK_GT")
#pragma pop_macro("CHECK_LE")
#pragma pop_macro("CHECK_LT")
#pragma pop_macro("CHECK_NE")
#pragma pop_macro("CHECK_EQ")
#pragma pop_macro("CHECK")
