#include "strategy/train/internal/python_pickle.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>
#include <variant>

namespace muster::internal {
namespace {

// As many as torch has.
constexpr std::size_t kMostDimensions = 64;

struct Storage {
  PythonName type;
  std::string_view key;
};
using Global = PythonName;
struct List;
struct Dict;
// std::monostate: None, and what no tensor needs. Numbers and truth values are integers.
using Value = std::variant<std::monostate, std::int64_t, std::string_view, Global, List*, Dict*,
                           Storage, StateTensor*>;
struct List {
  std::vector<Value> items;
};
struct Dict {
  std::vector<std::pair<std::string_view, Value>> items;
};

// Caught where the machine is run.
struct Refused {
  Status why;
};
[[noreturn]] void Raise(Status why) { throw Refused{std::move(why)}; }
[[noreturn]] void RaiseDamaged(std::string_view what) {
  Raise(InvalidArgument("its pickle is damaged: {}", what));
}

// A pickle's machine. Containers lie in it, flat, however they are nested. An instruction of two
// bytes repeats whatever was remembered: so texts lie in the pickle alone.
class Unpickler {
 public:
  explicit Unpickler(std::string_view bytes) : bytes_(bytes) {}

  Dict& Run() {
    while (Step(static_cast<unsigned char>(Take(1)[0]))) {
    }
    Dict** const dict = stack_.empty() ? nullptr : std::get_if<Dict*>(&stack_.back());
    if (dict == nullptr)
      Raise(InvalidArgument("it holds no dictionary of tensors: {}", kStateRemedy));
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
  std::string_view Line() {
    const std::size_t end = bytes_.find('\n');
    if (end == std::string_view::npos) RaiseDamaged("a name without an end");
    const std::string_view line = Take(end);
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
      if (const auto* const name = std::get_if<std::string_view>(&values[i])) {
        dict->items.emplace_back(*name, std::move(values[i + 1]));
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
    return {As<Global>(parts[1], "a storage without a type"),
            As<std::string_view>(parts[2], "a storage without a name")};
  }

  // Not negative.
  static std::vector<std::int64_t> NumbersOf(const Value& value) {
    const std::vector<Value>& items = As<List*>(value, "a tensor without a shape")->items;
    // The same list may be the shape of as many tensors as there are instructions.
    if (items.size() > kMostDimensions) RaiseDamaged("a tensor has too many dimensions");
    std::vector<std::int64_t> all;
    for (const Value& item : items) {
      all.push_back(As<std::int64_t>(item, "a tensor without a shape"));
      if (all.back() < 0) RaiseDamaged("a tensor's shape is negative");
    }
    return all;
  }

  // (storage, offset, sizes, strides, ...)
  StateTensor Rebuild(const std::vector<Value>& parts) {
    if (parts.size() < 4) RaiseDamaged("a tensor without a shape");
    const Storage storage = As<Storage>(parts[0], "a tensor without a storage");
    StateTensor tensor{.type = storage.type,
                       .key = storage.key,
                       .offset = As<std::int64_t>(parts[1], "a tensor without a shape"),
                       .sizes = NumbersOf(parts[2]),
                       .strides = NumbersOf(parts[3])};
    if (tensor.offset < 0 || tensor.sizes.size() != tensor.strides.size()) {
      RaiseDamaged("a tensor without a shape");
    }
    std::int64_t last = tensor.offset;
    std::int64_t elements = 1;  // a stride of 0 gives more of them than the storage has
    bool empty = false;
    for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
      const std::int64_t size = tensor.sizes[d];
      empty = empty || size == 0;
      std::int64_t reach = 0;
      if (__builtin_mul_overflow(std::max<std::int64_t>(0, size - 1), tensor.strides[d], &reach) ||
          __builtin_add_overflow(last, reach, &last) ||
          __builtin_mul_overflow(elements, size, &elements)) {
        RaiseDamaged("a tensor is beyond its storage");
      }
    }
    if (last == INT64_MAX) RaiseDamaged("a tensor is beyond its storage");
    tensor.needs = empty ? 0 : last + 1;
    return tensor;
  }

  void Reduce() {
    const Value arguments = Pop();
    const std::string name = As<Global>(Pop(), "a call of no function").Both();
    if (name == "collections OrderedDict") {
      stack_.emplace_back(&dicts_.emplace_back());
      return;
    }
    const std::vector<Value>& parts = As<List*>(arguments, "a call without arguments")->items;
    if (name == "torch._utils _rebuild_tensor_v2") {
      stack_.emplace_back(&tensors_.emplace_back(Rebuild(parts)));
    } else if (name == "torch._utils _rebuild_parameter" && !parts.empty()) {
      stack_.push_back(parts[0]);
    } else {
      Raise(InvalidArgument("it holds Python objects ({}): {}", name, kStateRemedy));
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
        const std::string_view module = Line();
        stack_.emplace_back(Global{module, Line()});
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
        stack_.emplace_back(Take(Number<std::uint32_t>()));
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
        Raise(
            InvalidArgument("its pickle has the instruction {:#04x}, which a dictionary of "
                            "tensors does not need: {}",
                            instruction, kStateRemedy));
    }
    return true;
  }

  std::string_view bytes_;  // what is left
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, Value> memo_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<StateTensor> tensors_;
};

}  // namespace

Result<std::map<std::string, StateTensor>> ReadStatePickle(std::string_view pickle) {
  try {
    Unpickler unpickler(pickle);
    std::map<std::string, StateTensor> tensors;
    for (const auto& [name, value] : unpickler.Run().items) {
      const auto* const tensor = std::get_if<StateTensor*>(&value);
      if (tensor != nullptr) tensors[std::string(name)] = **tensor;
    }
    return tensors;
  } catch (const Refused& refused) {
    return refused.why;
  }
}

}  // namespace muster::internal
