// The objects of deploy/kubernetes/base, in the order of its kustomization.
#pragma once

#include <string>
#include <vector>

#include <yaml-cpp/yaml.h>

namespace muster::testing {

inline std::vector<YAML::Node> LoadManifests(const std::string& folder) {
  std::vector<YAML::Node> objects;
  const YAML::Node kustomization = YAML::LoadFile(folder + "/kustomization.yaml");
  for (const YAML::Node& file : kustomization["resources"]) {
    for (const YAML::Node& one : YAML::LoadAllFromFile(folder + "/" + file.as<std::string>())) {
      objects.push_back(one);
    }
  }
  return objects;
}

// Those of that kind.
inline std::vector<YAML::Node> OfKind(const std::vector<YAML::Node>& objects,
                                      const std::string& kind) {
  std::vector<YAML::Node> found;
  for (const YAML::Node& one : objects) {
    if (one["kind"].as<std::string>() == kind) found.push_back(one);
  }
  return found;
}

}  // namespace muster::testing
