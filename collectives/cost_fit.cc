#include "collectives/cost_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace muster::collectives {

Costs FitCosts(Algorithm algorithm, std::span<const Timing> timings, double reduced_byte) {
  constexpr std::array<double Costs::*, 3> kWanted = {&Costs::round, &Costs::message, &Costs::byte};
  constexpr Costs kNothing{.round = 0, .message = 0, .byte = 0, .reduced_byte = 0};
  constexpr int kPasses = 20'000;
  // The closed forms are sums of figures times numbers: the numbers, in units of what was measured.
  std::vector<std::array<double, kWanted.size()>> numbers;
  std::vector<double> rest;
  for (const Timing& timing : timings) {
    const auto predicted = [&](const Costs& costs) {
      return PredictedSeconds(algorithm, timing.members, timing.bytes, costs) / timing.seconds;
    };
    auto& row = numbers.emplace_back();
    for (std::size_t k = 0; k < kWanted.size(); ++k) {
      Costs one = kNothing;
      one.*kWanted[k] = 1;
      row[k] = predicted(one);
    }
    Costs adding = kNothing;
    adding.reduced_byte = reduced_byte;
    rest.push_back(1 - predicted(adding));
  }
  // Coordinate by coordinate, from the defaults.
  Costs costs;
  costs.reduced_byte = reduced_byte;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    for (std::size_t k = 0; k < kWanted.size(); ++k) rest[i] -= numbers[i][k] * costs.*kWanted[k];
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    for (std::size_t k = 0; k < kWanted.size(); ++k) {
      double square = 0, product = 0;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        square += numbers[i][k] * numbers[i][k];
        product += numbers[i][k] * rest[i];
      }
      if (square <= 0) continue;
      double& figure = costs.*kWanted[k];
      const double next = std::max(0.0, figure + product / square);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        rest[i] -= numbers[i][k] * (next - figure);
      }
      figure = next;
    }
  }
  return costs;
}

}  // namespace muster::collectives
