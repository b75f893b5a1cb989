// Searches of configurations: what they ask, how they deal with noise, and what they find.
#include "cotune/search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "shingle/base/error.hpp"
#include "support/toy_overlap.hpp"

namespace shingle::cotune::cotune_search_test {
namespace {

using test::ToyOverlap;
using testing::ElementsAre;

constexpr double never = std::numeric_limits<double>::infinity();

Space small_space() {
  Space space;
  space.channels = {1, 2, 4, 8, 16, 32};
  space.chunk_bytes = {32 << 10, 128 << 10, 512 << 10, 2 << 20};
  return space;
}

/// Three collectives, of which computation hides all but the last.
ToyOverlap three() {
  ToyOverlap toy;
  toy.bytes = {20e6, 60e6, 20e6};
  toy.compute_us = {900, 700, 800};
  return toy;
}

TEST(CotuneSpace, GridsOfPowersOfTwo) {
  const Space space = resource_space(16, 256 << 10);
  EXPECT_THAT(space.channels, ElementsAre(1, 2, 3, 4, 6, 8, 12, 16));
  EXPECT_THAT(space.chunk_bytes, ElementsAre(32 << 10, 64 << 10, 128 << 10, 256 << 10));
  EXPECT_EQ(space.size(2), 32 * 32);
  EXPECT_EQ(describe(space.at({3, 2, 0, 0})), "4 channels, 128.0 KiB");
  EXPECT_EQ(Space{}.at({}), Config{});
}

TEST(CotuneSpace, HasWhatAPlanChoosesBesides) {
  Space space = small_space();
  space.subspaces.push_back({.transport = Transport::engines});
  space.spared = {0, 8};
  space.delay = {0, 1, 2};
  space.validate();
  EXPECT_EQ(space.size(1), 6 * 4 * 2 * 2 * 3);
  EXPECT_EQ(describe(space.at({4, 3, 1, 0, 1, 2})), "16 workers, 2.0 MiB, engines, 8 spared, 2 later");
  space.delay = {2, 1};
  EXPECT_THROW(space.validate(), InvalidArgument);
  EXPECT_THROW(Search(Method::together, small_space(), 1, {.most = -1}), InvalidArgument);
}

TEST(CotuneSpace, RefusesWhatIsNoGrid) {
  EXPECT_THROW(resource_space(0, 1 << 20), InvalidArgument);
  EXPECT_THROW(resource_space(4, 1 << 10), InvalidArgument);
  Space space = small_space();
  space.channels = {1, 4, 2};
  EXPECT_THROW(space.validate(), InvalidArgument);
  space = small_space();
  space.threads.clear();
  EXPECT_THROW(space.validate(), InvalidArgument);
  space = small_space();
  space.subspaces = {{}, {Algorithm::ring}, {}};
  EXPECT_THROW(space.validate(), InvalidArgument);
  space = small_space();
  space.start = {5, 3, 0, 0};
  space.validate();
  space.start = {0, 4, 0, 0};
  EXPECT_THROW(space.validate(), InvalidArgument);
}

TEST(CotuneSearch, GoesDownFromAStartAboveTheLeast) {
  ToyOverlap toy;
  toy.compute_us = {60000};
  Space space = small_space();
  space.start = {3, 2, 0, 0};
  Search search(Method::together, space, 1);
  search.tell(toy.measure(*search.next()));
  EXPECT_EQ(search.next()->front(), space.at(space.start)) << "after the library's";
  EXPECT_EQ(toy.searched(Method::together, space).best()[0].channels, 1);
  EXPECT_EQ(toy.searched(Method::alone, space).best()[0],
            toy.searched(Method::alone, small_space()).best()[0]);
}

TEST(CotuneSearch, LibraryIsASingleMeasurement) {
  Search search(Method::library, small_space(), 2);
  EXPECT_EQ(search.next(), std::vector<Config>(2));
  search.tell({100});
  EXPECT_EQ(search.next(), std::nullopt);
  EXPECT_EQ(search.best_measured().makespan_us, 100);
}

TEST(CotuneSearch, ExhaustiveAsksForEachOnceAndFindsTheLeast) {
  Space space;
  space.channels = {1, 2, 4};
  space.subspaces = {{}, {Algorithm::ring, Protocol::ll}};
  Search search(Method::exhaustive, space, 2);
  const auto us = [](const std::vector<Config>& at) {
    return 10.0 + std::abs(at[0].channels - 2) + (at[1].protocol == Protocol::ll ? 0 : 3) + at[1].channels;
  };
  while (const auto configs = search.next()) search.tell({us(*configs)});
  EXPECT_EQ(search.evaluations(), 36);
  EXPECT_EQ(search.best_measured().makespan_us, 11);
  EXPECT_EQ(search.best()[0].channels, 2);
  EXPECT_EQ(search.best()[1],
            (Config{.channels = 1, .algorithm = Algorithm::ring, .protocol = Protocol::ll}));
  EXPECT_THROW(Search(Method::exhaustive, small_space(), 9), InvalidArgument);
}

TEST(CotuneSearch, HiddenCommunicationStaysAtTheLeast) {
  ToyOverlap toy;
  toy.compute_us = {60000};
  const Search found = toy.searched(Method::together, small_space());
  EXPECT_EQ(found.best()[0].channels, 1);
  EXPECT_LE(found.evaluations(), 6);  // the library's, the least, and what is beside it
}

TEST(CotuneSearch, ExposedCommunicationGetsWhatMakesItFastest) {
  ToyOverlap toy;
  toy.compute_us = {10};
  const Search together = toy.searched(Method::together, small_space());
  const Search alone = toy.searched(Method::alone, small_space());
  EXPECT_NEAR(together.best_measured().communication_us[0], alone.best_measured().communication_us[0], 1);
  EXPECT_EQ(together.best()[0].channels, 8);  // no more: the link is full
}

TEST(CotuneSearch, BalancesComputationAndCommunication) {
  const ToyOverlap toy = three();
  const double library = toy.searched(Method::library, small_space()).best_measured().makespan_us;
  const double alone = toy.searched(Method::alone, small_space()).best_measured().makespan_us;
  const double together = toy.searched(Method::together, small_space()).best_measured().makespan_us;
  const double best = toy.searched(Method::exhaustive, small_space()).best_measured().makespan_us;
  EXPECT_LT(together, alone);
  EXPECT_LT(together, library);
  EXPECT_GE(best / together, 0.97);
}

// Alg. 1: the next step is for the collective that costs computation least for what it gains (Eq. 7).
TEST(CotuneSearch, GoesOnWhereTheMetricIsLeast) {
  Space space;
  space.channels = {1, 2, 4, 8};
  Search search(Method::together, space, 2);
  search.tell({3000});               // the library's
  std::vector<std::size_t> stepped;  // the collective of each step upwards
  std::vector<Config> before(2, {.channels = 1});
  while (const auto configs = search.next()) {
    const double first = (*configs)[0].channels, second = (*configs)[1].channels;
    if (first >= before[0].channels && second >= before[1].channels && *configs != before)
      stepped.push_back(first > before[0].channels ? 0 : 1);
    before = *configs;
    // Bound by communication: each step helps, the first collective's least, and it costs most.
    const double x0 = 1000 - 10 * first, x1 = 1000 - 100 * second;
    search.tell({x0 + x1, 100 + 50 * first + 0.01 * second, {x0, x1}});
  }
  ASSERT_GE(stepped.size(), 4);
  EXPECT_EQ(stepped[0], 0) << "all are alike before they are measured";
  EXPECT_EQ(stepped[1], 1);
  EXPECT_EQ(stepped[2], 1);
  EXPECT_EQ(search.best()[0].channels, 8);
  EXPECT_EQ(search.best()[1].channels, 8);
}

TEST(CotuneSearch, ThreadsComeLast) {
  Space space = small_space();
  space.threads = {128, 256, 512};
  const ToyOverlap toy = three();
  for (const Method method : {Method::together, Method::alone}) {
    Search search(method, space, 3);
    bool others_over = false;
    std::vector<Config> resources(3);
    while (const auto configs = search.next()) {
      Measurement measured = toy.measure(*configs);
      std::vector<Config> now = *configs;
      bool more_threads = false;
      for (std::size_t j = 0; j < now.size(); ++j) {
        const double faster = now[j].threads >= 256 ? 0.95 : 1;
        measured.makespan_us *= faster;
        measured.communication_us[j] *= faster;
        more_threads = more_threads || now[j].threads > 128;
        now[j].threads = 0;
      }
      if (method == Method::together && others_over) {
        EXPECT_EQ(now, resources);
      }
      if (more_threads && !others_over) others_over = true, resources = now;
      search.tell(measured);
    }
    EXPECT_TRUE(others_over) << name(method);
    const auto best = search.best();
    for (const Config& config : best) EXPECT_EQ(config.threads, 256) << name(method);
  }
}

TEST(CotuneSearch, MakespanAloneWillDo) {
  const ToyOverlap toy = three();
  const Search told = toy.searched(Method::together, small_space());
  const Search blind = toy.searched(Method::together, small_space(), {}, true);
  EXPECT_NEAR(blind.best_measured().makespan_us / told.best_measured().makespan_us, 1, 0.03);
  Search alone(Method::alone, small_space(), 3);
  EXPECT_THROW(alone.tell({100}), InvalidArgument);
}

TEST(CotuneSearch, FindsTheSubspace) {
  ToyOverlap toy = three();
  Space space = small_space();
  space.subspaces = {{Algorithm::ring, Protocol::ll}, {Algorithm::ring, Protocol::simple}};
  toy.link_gbps = 200;  // the library's 16 channels do not fill it
  for (const Method method : {Method::together, Method::alone}) {
    const auto best = toy.searched(method, space).best();
    for (const Config& config : best) EXPECT_EQ(config.protocol, Protocol::simple) << name(method);
  }
}

TEST(CotuneSearch, NeverChoosesWhatIsSlowerThanTheLibrary) {
  Search search(Method::together, small_space(), 2);
  while (const auto configs = search.next())
    search.tell({*configs == std::vector<Config>(2) ? 100.0 : 101.0 + (*configs)[0].channels});
  EXPECT_EQ(search.best(), std::vector<Config>(2));
}

TEST(CotuneSearch, OfTheSameMakespanTheFewestResources) {
  Space space;
  space.channels = {1, 2, 4, 8, 16};
  Search search(Method::together, space, 1);
  search.tell({2000});                          // the library's
  while (const auto configs = search.next()) {  // the step from 2 goes to 8
    const int channels = configs->front().channels;
    search.tell({channels == 1 ? 1000.0 : channels == 2 ? 700.0 : 500.0});
  }
  EXPECT_EQ(search.best()[0].channels, 4);
}

TEST(CotuneSearch, AloneKeepsTheLibrarysChoiceWhereNothingIsFaster) {
  Search search(Method::alone, small_space(), 2);
  while (const auto configs = search.next()) {
    const double other = (*configs)[1].channels == 2 ? 50 : 100;
    search.tell({200, 0, {(*configs)[0] == Config{} ? 80.0 : 90.0, other}});
  }
  EXPECT_EQ(search.best()[0], Config{});
  EXPECT_EQ(search.best()[1].channels, 2);
}

TEST(CotuneSearch, PassesOverWhatDoesNotRun) {
  Search search(Method::together, small_space(), 1);
  while (const auto configs = search.next()) {
    const Config& at = configs->front();
    search.tell({at.channels == 1 || at.channels == 4 ? never : 1000.0 / (at.channels + 1)});
  }
  EXPECT_EQ(search.best()[0].channels, 32);
}

TEST(CotuneSearch, RepeatsAndTrims) {
  Search search(Method::library, small_space(), 1, {.repeats = 5, .trim = 0.2});
  for (const double us : {10.0, 11.0, 12.0, 13.0, 500.0}) search.tell({us});
  EXPECT_EQ(search.evaluations(), 1);
  EXPECT_EQ(search.measurements(), 5);
  EXPECT_DOUBLE_EQ(search.best_measured().makespan_us, 12);
}

TEST(CotuneSearch, RejectsWhatIsTwiceClearlySlower) {
  Search search(Method::together, small_space(), 1, {.repeats = 4, .reject = 1.5});
  for (int i = 0; i < 4; ++i) search.tell({100});
  const auto slow = search.next();
  search.tell({400});
  EXPECT_EQ(search.next(), slow);
  search.tell({400});
  EXPECT_NE(search.next(), slow);
  EXPECT_EQ(search.measurements(), 6);
}

TEST(CotuneSearch, NoiseIsNoGain) {
  const ToyOverlap toy = three();
  const double still = toy.searched(Method::together, small_space()).best_measured().makespan_us;
  const Search noisy =
      toy.searched(Method::together, small_space(), {.least_gain = 0.01, .repeats = 7}, true, 0.03);
  EXPECT_LT(toy.measure(noisy.best()).makespan_us, 1.05 * still);
}

TEST(CotuneSearch, GrowsLinearlyWithTheCollectives) {
  ToyOverlap toy;
  const auto evaluations = [&](std::size_t collectives) {
    toy.bytes.assign(collectives, 30e6);
    toy.compute_us.assign(collectives, 900);
    return toy.searched(Method::together, small_space()).evaluations();
  };
  EXPECT_LE(evaluations(16), 16 * 20);
  EXPECT_LE(evaluations(16), 2.5 * evaluations(8));
}

TEST(CotuneSearch, RefusesWhatWasNotAsked) {
  EXPECT_THROW(Search(Method::together, small_space(), 0), InvalidArgument);
  EXPECT_THROW(Search(Method::together, small_space(), 1, {.repeats = 0}), InvalidArgument);
  EXPECT_THROW(Search(Method::together, small_space(), 1, {.trim = 0.5}), InvalidArgument);
  Search search(Method::library, small_space(), 2);
  EXPECT_THROW(search.tell({-1}), InvalidArgument);
  EXPECT_THROW(search.tell({std::nan("")}), InvalidArgument);
  EXPECT_THROW(search.tell({1, 1, {1}}), InvalidArgument);
  search.tell({1});
  EXPECT_THROW(search.tell({1}), InvalidArgument);
}

TEST(CotuneSearch, NamesRoundTrip) {
  for (const Method method : {Method::library, Method::alone, Method::together, Method::exhaustive})
    EXPECT_EQ(parse_method(name(method)), method);
  EXPECT_THROW(parse_method("best"), InvalidArgument);
  for (const Protocol protocol : {Protocol::automatic, Protocol::ll, Protocol::ll128, Protocol::simple})
    EXPECT_EQ(parse_protocol(name(protocol)), protocol);
  EXPECT_THROW(parse_algorithm("star"), InvalidArgument);
  EXPECT_EQ(parse_transport("net"), Transport::net);
  EXPECT_EQ(describe(Config{}), "default");
}

}  // namespace
}  // namespace shingle::cotune::cotune_search_test
