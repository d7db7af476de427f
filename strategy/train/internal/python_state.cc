#include "strategy/train/internal/python_state.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <caffe2/serialize/inline_container.h>

#include "strategy/base/error.h"
#include "strategy/base/internal/raise.h"

namespace muster::internal {
namespace {

using caffe2::serialize::PyTorchStreamReader;

constexpr std::string_view kRemedy =
    "save it in Python by torch.save(module.state_dict(), path), or by "
    "torch.jit.script(module).save(path)";

struct Global {
  std::string name;  // "torch._utils _rebuild_tensor_v2"
};
struct Storage {
  torch::ScalarType type;
  std::string key;
};
struct List;
struct Dict;
// std::monostate: None, and what no tensor needs. Numbers and truth values are integers.
using Value = std::variant<std::monostate, std::int64_t, std::string, Global, List*, Dict*, Storage,
                           torch::Tensor>;
struct List {
  std::vector<Value> items;
};
struct Dict {
  std::vector<std::pair<std::string, Value>> items;
};

[[noreturn]] void RaiseDamaged(std::string_view what) {
  raise(InvalidArgument("its pickle is damaged: {}", what));
}

std::optional<torch::ScalarType> TypeOf(std::string_view storage) {
  static const std::map<std::string_view, torch::ScalarType> types = {
      {"torch DoubleStorage", torch::kDouble},
      {"torch FloatStorage", torch::kFloat},
      {"torch HalfStorage", torch::kHalf},
      {"torch BFloat16Storage", torch::kBFloat16},
      {"torch LongStorage", torch::kLong},
      {"torch IntStorage", torch::kInt},
      {"torch ShortStorage", torch::kShort},
      {"torch CharStorage", torch::kChar},
      {"torch ByteStorage", torch::kByte},
      {"torch BoolStorage", torch::kBool},
      {"torch ComplexFloatStorage", torch::kComplexFloat},
      {"torch ComplexDoubleStorage", torch::kComplexDouble}};
  const auto found = types.find(storage);
  if (found == types.end()) return std::nullopt;
  return found->second;
}

// A pickle's machine. Containers lie in it, flat, however they are nested.
class Unpickler {
 public:
  Unpickler(PyTorchStreamReader& archive, std::string_view bytes)
      : archive_(archive), bytes_(bytes) {}

  Dict& Run() {
    while (Step(static_cast<unsigned char>(Take(1)[0]))) {
    }
    Dict** const dict = stack_.empty() ? nullptr : std::get_if<Dict*>(&stack_.back());
    if (dict == nullptr) raise(InvalidArgument("it holds no dictionary of tensors: {}", kRemedy));
    return **dict;
  }

 private:
  std::string_view Take(std::size_t count) {
    if (count > bytes_.size()) RaiseDamaged("it ends within an instruction");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  // Little-endian, as this machine is.
  template <class T>
  T Number() {
    static_assert(std::endian::native == std::endian::little);
    T number;
    std::memcpy(&number, Take(sizeof(T)).data(), sizeof(T));
    return number;
  }
  std::string Line() {
    const std::size_t end = bytes_.find('\n');
    if (end == std::string_view::npos) RaiseDamaged("a name without an end");
    const std::string line(Take(end));
    (void)Take(1);
    return line;
  }

  Value Pop() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) {
      RaiseDamaged("a value is missing");
    }
    Value value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  // What lies above the last mark.
  std::vector<Value> PopMarked() {
    if (marks_.empty()) RaiseDamaged("a mark is missing");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    marks_.pop_back();
    std::vector<Value> values(std::make_move_iterator(begin),
                              std::make_move_iterator(stack_.end()));
    stack_.erase(begin, stack_.end());
    return values;
  }
  template <class T>
  static T As(const Value& value, std::string_view what) {
    if (const T* const is = std::get_if<T>(&value)) return *is;
    RaiseDamaged(what);
  }

  void PushTuple(std::size_t size) {
    std::vector<Value> items(size);
    for (std::size_t i = size; i > 0; --i) items[i - 1] = Pop();
    stack_.emplace_back(&lists_.emplace_back(List{std::move(items)}));
  }
  void Put(std::uint32_t place) {
    if (stack_.empty()) RaiseDamaged("nothing to remember");
    memo_[place] = stack_.back();
  }
  void Get(std::uint32_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) RaiseDamaged("nothing was remembered there");
    stack_.push_back(found->second);
  }
  void Append(std::vector<Value> values) {
    List* const list = As<List*>(Top(), "no list to append to");
    for (Value& value : values) list->items.push_back(std::move(value));
  }
  void SetItems(std::vector<Value> values) {
    if (values.size() % 2 != 0) RaiseDamaged("a key without a value");
    Dict* const dict = As<Dict*>(Top(), "no dictionary to fill");
    for (std::size_t i = 0; i < values.size(); i += 2) {
      // A state dictionary's keys are names; another's (an optimizer's numbers) name no tensor.
      if (auto* const name = std::get_if<std::string>(&values[i])) {
        dict->items.emplace_back(std::move(*name), std::move(values[i + 1]));
      }
    }
  }
  Value& Top() {
    if (stack_.empty()) RaiseDamaged("a value is missing");
    return stack_.back();
  }

  // ("storage", torch FloatStorage, "0", "cpu", 6): all lie in host memory here.
  Storage StorageNamed(const Value& id) {
    const std::vector<Value>& parts = As<List*>(id, "a storage without a name")->items;
    if (parts.size() < 3) RaiseDamaged("a storage without a name");
    const std::string name = As<Global>(parts[1], "a storage without a type").name;
    const auto type = TypeOf(name);
    if (!type) raise(InvalidArgument("its tensors are of an unknown type, {}", name));
    return {*type, As<std::string>(parts[2], "a storage without a name")};
  }

  // (storage, offset, sizes, strides, ...)
  torch::Tensor Rebuild(const std::vector<Value>& parts) {
    if (parts.size() < 4) RaiseDamaged("a tensor without a shape");
    const Storage storage = As<Storage>(parts[0], "a tensor without a storage");
    const auto numbers = [](const Value& value) {
      std::vector<std::int64_t> all;
      for (const Value& item : As<List*>(value, "a tensor without a shape")->items) {
        all.push_back(As<std::int64_t>(item, "a tensor without a shape"));
        if (all.back() < 0) RaiseDamaged("a tensor's shape is negative");
      }
      return all;
    };
    const auto offset = As<std::int64_t>(parts[1], "a tensor without a shape");
    const std::vector<std::int64_t> sizes = numbers(parts[2]);
    const std::vector<std::int64_t> strides = numbers(parts[3]);
    if (offset < 0 || sizes.size() != strides.size()) RaiseDamaged("a tensor without a shape");
    auto [memory, bytes] = archive_.getRecord("data/" + storage.key);
    const auto there = static_cast<std::int64_t>(bytes / torch::elementSize(storage.type));
    std::int64_t last = offset;
    std::int64_t elements = 1;  // a stride of 0 gives more of them than the storage has
    bool empty = false;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      empty = empty || sizes[d] == 0;
      std::int64_t reach = 0;
      if (__builtin_mul_overflow(std::max<std::int64_t>(0, sizes[d] - 1), strides[d], &reach) ||
          __builtin_add_overflow(last, reach, &last) ||
          __builtin_mul_overflow(elements, sizes[d], &elements)) {
        RaiseDamaged("a tensor is beyond its storage");
      }
    }
    if (!empty && last >= there) RaiseDamaged("a tensor is beyond its storage");
    if (empty) return torch::empty(sizes, storage.type);
    auto* const begin = static_cast<std::byte*>(memory.get()) +
                        static_cast<std::size_t>(offset) * torch::elementSize(storage.type);
    // Not a copy, which a stride of 0 could make as large as the file likes.
    const auto keep = std::make_shared<at::DataPtr>(std::move(memory));
    return torch::from_blob(begin, sizes, strides, [keep](void*) {}, torch::dtype(storage.type));
  }

  void Reduce() {
    const Value arguments = Pop();
    const std::string name = As<Global>(Pop(), "a call of no function").name;
    if (name == "collections OrderedDict") {
      stack_.emplace_back(&dicts_.emplace_back());
      return;
    }
    const std::vector<Value>& parts = As<List*>(arguments, "a call without arguments")->items;
    if (name == "torch._utils _rebuild_tensor_v2") {
      stack_.emplace_back(Rebuild(parts));
    } else if (name == "torch._utils _rebuild_parameter" && !parts.empty()) {
      stack_.push_back(parts[0]);
    } else {
      raise(InvalidArgument("it holds Python objects ({}): {}", name, kRemedy));
    }
  }

  void Integer(std::string_view bytes) {
    if (bytes.size() > sizeof(std::int64_t)) {
      stack_.emplace_back();
      return;
    }
    std::int64_t number = bytes.empty() || static_cast<signed char>(bytes.back()) >= 0 ? 0 : -1;
    std::memcpy(&number, bytes.data(), bytes.size());
    stack_.emplace_back(number);
  }

  // One instruction. False: the last one.
  bool Step(unsigned char instruction) {
    switch (instruction) {
      case 0x80:
        (void)Take(1);
        break;  // the protocol's number
      case '.':
        return false;
      case '(':
        marks_.push_back(stack_.size());
        break;
      case ')':
        PushTuple(0);
        break;
      case 't':
        stack_.emplace_back(&lists_.emplace_back(List{PopMarked()}));
        break;
      case 0x85:
        PushTuple(1);
        break;
      case 0x86:
        PushTuple(2);
        break;
      case 0x87:
        PushTuple(3);
        break;
      case ']':
        PushTuple(0);
        break;
      case 'a': {
        Value one = Pop();
        Append({std::move(one)});
        break;
      }
      case 'e':
        Append(PopMarked());
        break;
      case '}':
        stack_.emplace_back(&dicts_.emplace_back());
        break;
      case 's': {
        Value value = Pop();
        Value key = Pop();
        SetItems({std::move(key), std::move(value)});
        break;
      }
      case 'u':
        SetItems(PopMarked());
        break;
      case 'c': {
        std::string module = Line();
        stack_.emplace_back(Global{std::move(module) + " " + Line()});
        break;
      }
      case 'q':
        Put(Number<std::uint8_t>());
        break;
      case 'r':
        Put(Number<std::uint32_t>());
        break;
      case 'h':
        Get(Number<std::uint8_t>());
        break;
      case 'j':
        Get(Number<std::uint32_t>());
        break;
      case 'X':
        stack_.emplace_back(std::string(Take(Number<std::uint32_t>())));
        break;
      case 'K':
        stack_.emplace_back(std::int64_t{Number<std::uint8_t>()});
        break;
      case 'M':
        stack_.emplace_back(std::int64_t{Number<std::uint16_t>()});
        break;
      case 'J':
        stack_.emplace_back(std::int64_t{Number<std::int32_t>()});
        break;
      case 0x8a:
        Integer(Take(Number<std::uint8_t>()));
        break;
      case 'G':
        (void)Take(8);
        stack_.emplace_back();
        break;
      case 'N':
        stack_.emplace_back();
        break;
      case 0x88:
        stack_.emplace_back(std::int64_t{1});
        break;
      case 0x89:
        stack_.emplace_back(std::int64_t{0});
        break;
      case 'Q': {
        const Value id = Pop();
        stack_.emplace_back(StorageNamed(id));
        break;
      }
      case 'R':
        Reduce();
        break;
      case 'b':
        (void)Pop();
        break;  // attributes, such as a state dictionary's _metadata
      default:
        raise(
            InvalidArgument("its pickle has the instruction {:#04x}, which a dictionary of "
                            "tensors does not need: {}",
                            instruction, kRemedy));
    }
    return true;
  }

  PyTorchStreamReader& archive_;
  std::string_view bytes_;  // what is left
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, Value> memo_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
};

// The pickle that torch.save() wrote before its 1.6, or with _use_new_zipfile_serialization=False.
bool IsOldPickle(const std::string& path) {
  constexpr std::string_view kMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9", 9);
  std::string head(kMagic.size(), '\0');
  std::ifstream(path, std::ios::binary)
      .read(head.data(), static_cast<std::streamsize>(head.size()));
  return head == kMagic;
}

}  // namespace

bool IsPythonState(const std::string& path) {
  if (IsOldPickle(path)) return true;
  try {
    PyTorchStreamReader archive(path);
    return archive.hasRecord("data.pkl") && !archive.hasRecord("constants.pkl");
  } catch (const std::exception&) {  // no archive at all
    return false;
  }
}

std::map<std::string, torch::Tensor> ReadPythonState(const std::string& path) {
  if (IsOldPickle(path)) raise(InvalidArgument("it is a pickle of the old format: {}", kRemedy));
  const torch::NoGradGuard no_grad;
  PyTorchStreamReader archive(path);
  const auto [memory, size] = archive.getRecord("data.pkl");
  Unpickler unpickler(archive, {static_cast<const char*>(memory.get()), size});
  std::map<std::string, torch::Tensor> tensors;
  for (auto& [name, value] : unpickler.Run().items) {
    if (auto* const tensor = std::get_if<torch::Tensor>(&value)) tensors[name] = *tensor;
  }
  return tensors;
}

}  // namespace muster::internal
