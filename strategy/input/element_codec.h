// Typed values as elements of a pipeline: a tensor, a number, a string, and tuples, pairs, vectors,
// maps and aggregates (NestFields, strategy/values/nest.h) of them. Each leaf is a column, in
// order. A leaf's column is named by its path: "value" alone, "1" in a tuple, "image" in a map,
// "0/image".
//
// Threading: any thread; functions of their arguments alone.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/base/dtype.h"
#include "common/data/element.h"
#include "device/place.h"
#include "strategy/base/torch.h"
#include "strategy/values/nest.h"

namespace muster::internal {

// The column of an element that is one leaf.
inline constexpr const char* kOnlyColumn = "value";

// A view of the column's memory, which it keeps alive; of a card_column() its tensor.
// INVALID_ARGUMENT: a column of strings.
torch::Tensor to_tensor(const data::Column& column);
// The tensor of a column that is one number. INVALID_ARGUMENT: it has no value, or several.
torch::Tensor to_number(const data::Column& column);
// The same values on a GPU (`place` as Destinations numbers devices): nothing but to_tensor() can
// read such a column.
data::Column card_column(const data::Column& column, device::Place place);
// Detached, contiguous. INVALID_ARGUMENT: a type that no column has, or a tensor that is sparse.
data::Column to_column(std::string name, const torch::Tensor& tensor);
std::string to_string_leaf(const data::Column& column);
data::Column to_column(std::string name, const std::string& text);
// INTERNAL: the element has no further column for a leaf, or more columns than leaves.
[[noreturn]] void raise_columns(const data::Element& element, std::size_t used);
// INVALID_ARGUMENT: a member of a list or a map of lists, maps or structures whose columns, `count`
// of them, would not tell which one they are of.
void check_member(const std::string& path, const std::string& name, std::size_t count);
torch::ScalarType scalar_type(DType dtype);

inline std::string join_path(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "/" + name;
}

template <class T>
constexpr bool is_element_leaf =
    std::is_same_v<T, torch::Tensor> || std::is_same_v<T, std::string> || std::is_arithmetic_v<T>;

// Whether a T can be an element. Dataset<T> says so; where it cannot, nothing here complains once
// more.
template <class T>
struct IsElement : std::bool_constant<is_element_leaf<T>> {};
template <class... T>
struct IsElement<std::tuple<T...>> : std::bool_constant<(IsElement<T>::value && ...)> {};
template <class A, class B>
struct IsElement<std::pair<A, B>> : IsElement<std::tuple<A, B>> {};
template <class T, class A>
struct IsElement<std::vector<T, A>> : IsElement<T> {};
template <class K, class V, class C, class A>
struct IsElement<std::map<K, V, C, A>> : IsElement<V> {};
template <nest::Tied T>
struct IsElement<T> : std::true_type {};

class ElementPacker {
 public:
  template <class T>
  void add(const std::string& path, const T& value) {
    const std::string name = path.empty() ? kOnlyColumn : path;
    if constexpr (std::is_same_v<T, std::string>) {
      element_.columns.push_back(to_column(name, value));
    } else if constexpr (is_element_leaf<T>) {
      element_.columns.push_back(to_column(name, nest::to_tensor(value)));
    } else if constexpr (nest::IsVector<T>::value) {
      for (std::size_t i = 0; i < value.size(); ++i) add_member(path, std::to_string(i), value[i]);
    } else if constexpr (nest::IsMap<T>::value) {
      for (const auto& [key, one] : value) add_member(path, key, one);
    } else if constexpr (nest::IsTuple<T>::value) {
      add_tuple(path, value);
    } else if constexpr (nest::Tied<T>) {
      add_tuple(path, NestFields<T>::tie(const_cast<T&>(value)));
    }
  }
  data::Element take() { return std::move(element_); }

 private:
  template <class T>
  void add_member(const std::string& path, const std::string& name, const T& value) {
    const std::size_t before = element_.columns.size();
    add(join_path(path, name), value);
    if constexpr (!is_element_leaf<T>) {
      check_member(path, name, element_.columns.size() - before);
    }
  }
  template <class Tuple>
  void add_tuple(const std::string& path, const Tuple& tuple) {
    const auto each = [&]<std::size_t... I>(std::index_sequence<I...>) {
      (add(join_path(path, std::to_string(I)), std::get<I>(tuple)), ...);
    };
    each(std::make_index_sequence<std::tuple_size_v<Tuple>>());
  }

  data::Element element_;
};

class ElementUnpacker {
 public:
  explicit ElementUnpacker(const data::Element& element) : element_(element) {}

  template <class T>
  T get(const std::string& path = "") {
    if constexpr (std::is_same_v<T, torch::Tensor>) {
      return to_tensor(next());
    } else if constexpr (std::is_same_v<T, std::string>) {
      return to_string_leaf(next());
    } else if constexpr (std::is_arithmetic_v<T>) {
      const auto value = to_number(next()).item<nest::in_tensor_t<T>>();
      const T own = static_cast<T>(value);
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        if (static_cast<nest::in_tensor_t<T>>(own) != value || (own < T{}) != (value < 0)) {
          raise(ErrorCode::kInvalidArgument,
                "an element of " + std::to_string(value) + " does not fit the type of the program");
        }
      }
      return own;
    } else if constexpr (nest::IsVector<T>::value) {
      T values;
      while (below(path)) values.push_back(get<typename T::value_type>(child(path, false)));
      return values;
    } else if constexpr (nest::IsMap<T>::value) {
      static_assert(std::is_same_v<typename T::key_type, std::string>, "keys are strings");
      using Value = typename T::mapped_type;
      T values;
      while (below(path) || (is_element_leaf<Value> && at(path))) {
        const std::string one = at(path) ? path : child(path, is_element_leaf<Value>);
        std::string key = at(path) ? kOnlyColumn : one.substr(path.empty() ? 0 : path.size() + 1);
        values.emplace(std::move(key), get<Value>(one));
      }
      return values;
    } else if constexpr (nest::IsTuple<T>::value) {
      const auto all = [&]<std::size_t... I>(std::index_sequence<I...>) {
        return T{get<std::tuple_element_t<I, T>>(join_path(path, std::to_string(I)))...};
      };
      return all(std::make_index_sequence<std::tuple_size_v<T>>());
    } else if constexpr (!nest::Tied<T>) {
      return T{};
    } else {
      T value{};
      auto fields = NestFields<T>::tie(value);
      const auto all = [&]<std::size_t... I>(std::index_sequence<I...>) {
        ((std::get<I>(fields) = get<std::remove_cvref_t<decltype(std::get<I>(fields))>>(
              join_path(path, std::to_string(I)))),
         ...);
      };
      all(std::make_index_sequence<std::tuple_size_v<decltype(fields)>>());
      return value;
    }
  }
  void finish() const {
    if (used_ != element_.columns.size()) raise_columns(element_, used_);
  }

 private:
  const data::Column& next() {
    if (used_ == element_.columns.size()) raise_columns(element_, used_);
    return element_.columns[used_++];
  }
  // Whether the next column is one below `path`.
  bool below(const std::string& path) const {
    if (used_ == element_.columns.size()) return false;
    const std::string& name = element_.columns[used_].info.name;
    return path.empty() || (name.size() > path.size() && name[path.size()] == '/' &&
                            std::string_view(name).substr(0, path.size()) == path);
  }
  // Whether it is what a zip or a window makes of the key kOnlyColumn of a map: they know no maps,
  // and take it for an element that is one leaf.
  bool at(const std::string& path) const {
    return !path.empty() && used_ < element_.columns.size() &&
           element_.columns[used_].info.name == path;
  }
  // Its name to the end, or to the next '/' after `path`.
  std::string child(const std::string& path, bool whole) const {
    const std::string& name = element_.columns[used_].info.name;
    if (whole) return name;
    return name.substr(0, name.find('/', path.empty() ? 0 : path.size() + 1));
  }

  const data::Element& element_;
  std::size_t used_ = 0;
};

// The names of the columns of a T of so many leaves, whatever its value; nothing for a map, which
// takes any columns by name.
using LeafPaths = std::optional<std::vector<std::string>>;

template <class T>
void add_leaf_paths(const std::string& path, std::vector<std::string>& paths) {
  const auto each = [&]<class Tuple, std::size_t... I>(std::type_identity<Tuple>,
                                                       std::index_sequence<I...>) {
    (add_leaf_paths<std::remove_cvref_t<std::tuple_element_t<I, Tuple>>>(
         join_path(path, std::to_string(I)), paths),
     ...);
  };
  if constexpr (is_element_leaf<T>) {
    paths.push_back(path.empty() ? kOnlyColumn : path);
  } else if constexpr (nest::IsTuple<T>::value) {
    each(std::type_identity<T>(), std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    static_assert(nest::Tied<T>, "columns go to tensors, tuples, aggregates, or a map of tensors");
    using Tie = decltype(NestFields<T>::tie(std::declval<T&>()));
    each(std::type_identity<Tie>(), std::make_index_sequence<std::tuple_size_v<Tie>>());
  }
}
template <class T>
LeafPaths leaf_paths() {
  if constexpr (nest::IsMap<T>::value) {
    static_assert(std::is_same_v<T, std::map<std::string, torch::Tensor>>, "a map of tensors");
    return std::nullopt;
  } else {
    std::vector<std::string> paths;
    add_leaf_paths<T>("", paths);
    return paths;
  }
}

template <class T>
data::Element pack(const T& value) {
  ElementPacker packer;
  packer.add("", value);
  return packer.take();
}

// INTERNAL: the element was not made from a T.
template <class T>
T unpack(const data::Element& element) {
  ElementUnpacker unpacker(element);
  T value = unpacker.get<T>();
  unpacker.finish();
  return value;
}

}  // namespace muster::internal
