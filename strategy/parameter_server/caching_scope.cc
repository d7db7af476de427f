#include "strategy/parameter_server/caching_scope.h"

#include "strategy/base/internal/raise.h"
#include "strategy/parameter_server/internal/cached_reads.h"
#include "strategy/parameter_server/internal/closure_session.h"

namespace muster {
namespace internal {
namespace {

thread_local CachedReads* current = nullptr;

}  // namespace

CachedReads* CachedReads::Current() { return current; }

void CachedReads::SetCurrent(CachedReads* reads) { current = reads; }

torch::Tensor CachedReads::Read(PsConnection& connection, const ps::VariableHandle& variable) {
  torch::Tensor& value = values_[variable];
  if (!value.defined()) value = ReadVariable(connection, variable, nullptr);
  return value;
}

}  // namespace internal

CachingScope::CachingScope() : reads_(std::make_unique<internal::CachedReads>()) {
  if (internal::CachedReads::Current() != nullptr) {
    raise(
        InvalidArgument("a CachingScope within another one of the same thread: end that one "
                        "first, or read under it"));
  }
  internal::CachedReads::SetCurrent(reads_.get());
}

CachingScope::~CachingScope() { internal::CachedReads::SetCurrent(nullptr); }

}  // namespace muster
