// The JSON form of everything in a plan. Writer and reader use the same fields, so they cannot disagree.
//
// fields(f, x) passes every field of x to f. A field is required, or optional with the value that absence
// means (zero or empty if none is given). list_or_one() passes a required list, of which older plans hold the
// one element alone. alternative() passes the name of a variant's alternative, by index; absence means the
// first. work() passes what a plan computes.
#pragma once

#include "names.hpp"
#include "step_fields.hpp"

namespace shingle::plan_json {

constexpr std::string_view format = "shingle-plan";

void fields(auto& f, Is<Buffer> auto& b) {
  f.required("name", b.name);
  f.optional("role", b.role, Role::internal);
  f.required("dtype", b.dtype);
  f.required("rows", b.rows);
  f.required("cols", b.cols);
  f.optional("depth", b.depth, 1);
  f.optional("flagged", b.flagged);
}

void fields(auto& f, Is<Counter> auto& c) {
  f.required("name", c.name);
  f.optional("kind", c.kind);
  f.required("growth", c.growth);
  f.optional("of_begins", c.of_begins);
  f.optional("of_arrivals", c.of_arrivals);
}

void fields(auto& f, Is<Submission> auto& s) {
  f.optional("launcher", s.launcher, -1);
  f.optional("prelaunched", s.prelaunched);
  f.optional("timed", s.timed);
  f.optional("doorbells", s.doorbells);
}

void fields(auto& f, Is<Lane> auto& l) {
  f.required("kind", l.kind);
  f.required("name", l.name);
  f.optional("submission", l.submission);
  f.required("steps", l.steps);
}

void fields(auto& f, Is<RankPlan> auto& r) {
  f.required("lanes", r.lanes);
  f.required("issue", r.issue);
}

void fields(auto& f, Is<Communicator> auto& c) {
  f.required("name", c.name);
  f.required("ranks", c.ranks);
}

void fields(auto& f, Is<Plan> auto& p) {
  f.work(p.work);
  f.required("mechanism", p.mechanism);
  f.optional("params", p.params);
  f.required("workers", p.workers);
  f.required("rounding", p.rounding);
  f.required("buffers", p.buffers);
  f.optional("counters", p.counters);
  f.optional("communicators", p.communicators);
  f.required("ranks", p.ranks);
}

}  // namespace shingle::plan_json
