#include "strategy/tpu/topology.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strategy/base/internal/raise.h"

namespace muster {

using internal::text_of;

namespace {

constexpr std::size_t kRank = 4;
// More places than any system has; what asks for more is a mistake.
constexpr long kMaxPlaces = 1 << 20;

void CheckMesh(const std::vector<int>& shape) {
  long places = 1;
  bool good = shape.size() == kRank;
  for (const int size : shape) {
    good = good && size >= 1 && places * size <= kMaxPlaces;
    if (good) places *= size;
  }
  if (good) return;
  raise(InvalidArgument(
      "mesh_shape {} is not four positive numbers, chips along x, y and z and cores of a chip, for "
      "at most {} cores",
      text_of(shape), kMaxPlaces));
}

// nlohmann's own conversion drops fractions, and what is too large for an int.
int IntOf(const nlohmann::json& number) {
  const auto value = number.is_number_integer() ? number.get<std::int64_t>() : -1;
  if (value >= 0 && value <= std::numeric_limits<int>::max()) return static_cast<int>(value);
  raise(
      InvalidArgument("a serialized topology has {} where it may have whole numbers from 0 to {} "
                      "alone",
                      number.dump(), std::numeric_limits<int>::max()));
}

// These two throw what nlohmann throws where it is no list.
const nlohmann::json::array_t& ListOf(const nlohmann::json& json) {
  return json.get_ref<const nlohmann::json::array_t&>();
}
std::vector<int> IntsOf(const nlohmann::json& list) {
  std::vector<int> numbers;
  for (const nlohmann::json& one : ListOf(list)) numbers.push_back(IntOf(one));
  return numbers;
}

std::string NameOf(const std::optional<std::string>& job, int task, std::string_view type,
                   int ordinal) {
  return fmt::format("{}/task:{}/device:{}:{}", job.has_value() ? "/job:" + *job : "", task, type,
                     ordinal);
}

}  // namespace

std::vector<int> internal::digits_of(int number, const std::vector<int>& shape,
                                     const std::vector<int>& order) {
  std::vector<int> digits(shape.size());
  for (const int dimension : order) {
    const auto d = static_cast<std::size_t>(dimension);
    digits[d] = number % shape[d];
    number /= shape[d];
  }
  return digits;
}

std::string internal::text_of(const std::vector<int>& numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

int internal::product_of(const std::vector<int>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 1, std::multiplies<>());
}

Topology::Topology(std::vector<int> mesh_shape, Devices device_coordinates)
    : mesh_shape_(std::move(mesh_shape)), device_coordinates_(std::move(device_coordinates)) {
  CheckMesh(mesh_shape_);
  if (device_coordinates_.empty() || device_coordinates_[0].empty()) {
    raise(InvalidArgument("device_coordinates are empty: a topology has a task with a device"));
  }
  at_.resize(static_cast<std::size_t>(internal::product_of(mesh_shape_)));
  for (int task = 0; task < num_tasks(); ++task) {
    const auto& devices = device_coordinates_[static_cast<std::size_t>(task)];
    if (devices.size() != device_coordinates_[0].size()) {
      raise(InvalidArgument("device_coordinates: task {} has {} devices, task 0 has {}", task,
                            devices.size(), device_coordinates_[0].size()));
    }
    for (std::size_t ordinal = 0; ordinal < devices.size(); ++ordinal) {
      Device& device = at_[index_of(devices[ordinal])];
      if (device.task >= 0) {
        raise(
            InvalidArgument("device_coordinates: device {} of task {} and {} of task {} are at {}",
                            device.ordinal, device.task, ordinal, task, text_of(devices[ordinal])));
      }
      device = {task, static_cast<int>(ordinal)};
    }
  }
}

std::string Topology::serialized() const {
  return nlohmann::json{{"mesh_shape", mesh_shape_}, {"device_coordinates", device_coordinates_}}
      .dump();
}

Topology Topology::parse(std::string_view serialized) {
  std::vector<int> mesh;
  Devices devices;
  try {
    const auto json = nlohmann::json::parse(serialized);
    mesh = IntsOf(json.at("mesh_shape"));
    for (const nlohmann::json& task : ListOf(json.at("device_coordinates"))) {
      auto& of_task = devices.emplace_back();
      for (const nlohmann::json& device : ListOf(task)) of_task.push_back(IntsOf(device));
    }
  } catch (const nlohmann::json::exception& error) {
    raise(
        InvalidArgument("a serialized topology is not {{\"mesh_shape\": [x,y,z,cores], "
                        "\"device_coordinates\": [[[x,y,z,core], ..], ..]}}: {}",
                        error.what()));
  }
  return {std::move(mesh), std::move(devices)};
}

std::vector<Topology::Coordinates> Topology::missing_devices() const {
  std::vector<Coordinates> missing;
  for (std::size_t place = 0; place < at_.size(); ++place) {
    if (at_[place].task < 0) {
      missing.push_back(internal::digits_of(static_cast<int>(place), mesh_shape_, {3, 2, 1, 0}));
    }
  }
  return missing;
}

std::size_t Topology::index_of(const Coordinates& coordinates) const {
  bool good = coordinates.size() == mesh_shape_.size();
  std::size_t index = 0;
  for (std::size_t d = 0; good && d < mesh_shape_.size(); ++d) {
    good = coordinates[d] >= 0 && coordinates[d] < mesh_shape_[d];
    index = index * static_cast<std::size_t>(mesh_shape_[d]) +
            static_cast<std::size_t>(good ? coordinates[d] : 0);
  }
  if (good) return index;
  raise(InvalidArgument("coordinates {} are not {} numbers inside the mesh {}",
                        text_of(coordinates), mesh_shape_.size(), text_of(mesh_shape_)));
}

const Topology::Device& Topology::device_at(const Coordinates& coordinates) const {
  return at_[index_of(coordinates)];
}

const Topology::Device& Topology::existing_device_at(const Coordinates& coordinates) const {
  const Device& device = device_at(coordinates);
  if (device.task >= 0) return device;
  raise(InvalidArgument("the topology has no device at {}", text_of(coordinates)));
}

int Topology::task_ordinal_at_coordinates(const Coordinates& coordinates) const {
  return device_at(coordinates).task;
}

int Topology::tpu_device_ordinal_at_coordinates(const Coordinates& coordinates) const {
  return device_at(coordinates).ordinal;
}

std::string Topology::tpu_device_name_at_coordinates(const Coordinates& coordinates,
                                                     const std::optional<std::string>& job) const {
  const Device& device = existing_device_at(coordinates);
  return NameOf(job, device.task, "TPU", device.ordinal);
}

std::string Topology::cpu_device_name_at_coordinates(const Coordinates& coordinates,
                                                     const std::optional<std::string>& job) const {
  return NameOf(job, existing_device_at(coordinates).task, "CPU", 0);
}

}  // namespace muster
