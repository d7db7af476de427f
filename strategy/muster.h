// Everything of Muster's C++ API. A program may include single headers of strategy/ instead.
#pragma once

#include "strategy/central_storage_strategy.h"
#include "strategy/checkpoint.h"
#include "strategy/communication_options.h"
#include "strategy/context.h"
#include "strategy/cross_device_ops.h"
#include "strategy/default_strategy.h"
#include "strategy/destinations.h"
#include "strategy/device_of.h"
#include "strategy/distributed_values.h"
#include "strategy/error.h"
#include "strategy/extended.h"
#include "strategy/indexed_slices.h"
<<<<<<< HEAD
#include "strategy/input/distributed_dataset.h"
=======
#include "strategy/loss.h"
#include "strategy/metrics.h"
>>>>>>> 079fe96 (WIP modules, optimizers, metrics, losses, summaries)
#include "strategy/mirrored_strategy.h"
#include "strategy/nest.h"
#include "strategy/one_device_strategy.h"
#include "strategy/options.h"
#include "strategy/regroup.h"
#include "strategy/replica_context.h"
#include "strategy/sparse.h"
#include "strategy/strategy.h"
#include "strategy/summary.h"
#include "strategy/torch.h"
#include "strategy/variable.h"
#include "strategy/version.h"
