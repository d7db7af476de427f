// Where the cores of a TPU system are: a mesh of chips along x, y and z, each chip with some cores.
//
// Threading: a plain value.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

class Topology {
 public:
  // x, y, z, core of the chip; each from 0.
  using Coordinates = std::vector<int>;
  // By task, then by device ordinal.
  using Devices = std::vector<std::vector<Coordinates>>;

  //   INVALID_ARGUMENT: mesh_shape is not four positive numbers; no device, or tasks with different
  //   numbers of them; coordinates that are not four numbers inside the mesh; two devices at the
  //   same ones.
  Topology(std::vector<int> mesh_shape, Devices device_coordinates);

  // {"mesh_shape":[1,1,1,2],"device_coordinates":[[[0,0,0,0],[0,0,0,1]]]}, and back.
  //   INVALID_ARGUMENT: another form, and as above.
  std::string serialized() const;
  static Topology parse(std::string_view serialized);

  const std::vector<int>& mesh_shape() const { return mesh_shape_; }
  int mesh_rank() const { return static_cast<int>(mesh_shape_.size()); }
  const Devices& device_coordinates() const { return device_coordinates_; }
  int num_tasks() const { return static_cast<int>(device_coordinates_.size()); }
  int num_tpus_per_task() const { return static_cast<int>(device_coordinates_[0].size()); }
  // The places of the mesh where there is no device, x slowest.
  std::vector<Coordinates> missing_devices() const;

  // Whose device it is, and its number there; -1 where there is none.
  //   INVALID_ARGUMENT: outside the mesh.
  int task_ordinal_at_coordinates(const Coordinates& coordinates) const;
  int tpu_device_ordinal_at_coordinates(const Coordinates& coordinates) const;
  // "/job:j/task:t/device:TPU:d", and the CPU of its host; "/task:t/.." without a job.
  //   INVALID_ARGUMENT: as above, or no device is there.
  std::string tpu_device_name_at_coordinates(const Coordinates& coordinates,
                                             const std::optional<std::string>& job = {}) const;
  std::string cpu_device_name_at_coordinates(const Coordinates& coordinates,
                                             const std::optional<std::string>& job = {}) const;

  bool operator==(const Topology&) const = default;

 private:
  struct Device {
    int task = -1;
    int ordinal = -1;
    bool operator==(const Device&) const = default;
  };
  std::size_t index_of(const Coordinates& coordinates) const;
  const Device& device_at(const Coordinates& coordinates) const;
  const Device& existing_device_at(const Coordinates& coordinates) const;

  std::vector<int> mesh_shape_;
  Devices device_coordinates_;
  std::vector<Device> at_;  // by place in the mesh, core fastest
};

namespace internal {
// The digits of `number` where dimension order[0] of `shape` runs fastest.
std::vector<int> digits_of(int number, const std::vector<int>& shape,
                           const std::vector<int>& order);
int product_of(const std::vector<int>& numbers);
// "[2, 2, 1, 2]"
std::string text_of(const std::vector<int>& numbers);
}  // namespace internal

}  // namespace muster
