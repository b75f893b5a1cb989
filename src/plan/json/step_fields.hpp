// Fields of steps: placements and hooks, then the alternatives of Step.
#pragma once

#include "problem_fields.hpp"

namespace shingle::plan_json {

void fields(auto& f, Is<CounterRef> auto& c) {
  f.required("counter", c.counter);
  f.required("rank", c.rank);
  f.optional("entry", c.entry);
}

void fields(auto& f, Is<placement::Matrix> auto& p) {
  f.optional("rows", p.rows);
  f.optional("ranks", p.ranks);
}

void fields(auto& f, Is<placement::Slots> auto& p) {
  f.optional("ends", p.ends);
  f.optional("bases", p.bases);
  f.optional("ranks", p.ranks);
}

void fields(auto& f, Is<placement::Subtiles> auto& p) {
  f.optional("ends", p.ends);
  f.optional("parts", p.parts, 1);
}

void fields(auto& f, Is<placement::Pools> auto& p) {
  f.optional("ends", p.ends);
  f.optional("source", p.source, -1);
  f.optional("dest", p.dest, -1);
  f.optional("bases", p.bases);
  f.optional("first", p.first);
}

void fields(auto& f, Is<placement::Routed> auto& p) {
  f.optional("source", p.source, -1);
  f.optional("dest", p.dest, -1);
  f.optional("bases", p.bases);
  f.optional("one_rank", p.one_rank);
}

void fields(auto& f, Is<placement::Returned> auto& p) {
  f.required("rank", p.rank);
}

void fields(auto& f, Is<placement::Indexed> auto& p) {
  f.required("index", p.index);
}

void fields(auto& f, Is<placement::Owners> auto& p) {
  f.optional("rows", p.rows);
}

void fields(auto& f, Is<Placement> auto& p) {
  f.alternative("kind", Placement::names, p.form);
  f.required("slice", p.slice);
  std::visit([&](auto& form) { fields(f, form); }, p.form);
}

void fields(auto& f, Is<TileGate> auto& g) {
  f.required("counter", g.counter);
  f.required("ends", g.ends);
  f.required("targets", g.targets);
  f.optional("entries", g.entries);
  f.optional("of_parts", g.of_parts);
}

void fields(auto& f, Is<TileNotify> auto& n) {
  f.required("counter", n.counter);
  f.optional("ranks", n.ranks);
  f.required("ends", n.ends);
  f.optional("entries", n.entries, -1);
  f.optional("owners", n.owners);
}

void fields(auto& f, Is<Resources> auto& r) {
  f.optional("least", r.least);
  f.optional("most", r.most);
}

void fields(auto& f, Is<RowGroup> auto& g) {
  f.required("a_row", g.a_row);
  f.required("row", g.row);
  f.required("rows", g.rows);
  f.required("weight", g.weight);
  f.optional("live", g.live, -1);
}

void fields(auto& f, Is<TileSums> auto& s) {
  f.required("from", s.from);
  f.list_or_one("to", s.to);
}

void fields(auto& f, Is<Gemm> auto& g) {
  f.required("grid", g.grid);
  f.required("a", g.a);
  f.required("b", g.b);
  f.required("a_rows", g.a_rows);
  f.optional("groups", g.groups);
  f.optional("group_tiles", g.group_tiles, Gemm{}.group_tiles);
  f.optional("live", g.live);
  f.optional("transpose_a", g.transpose_a);
  f.optional("transpose_b", g.transpose_b);
  f.optional("epilogue", g.epilogue);
  f.optional("bias", g.bias);
  f.required("out", g.out);
  f.optional("sums", g.sums);
  f.optional("gates", g.gates);
  f.optional("notify", g.notify);
  f.optional("resources", g.resources, Gemm{}.resources);
  f.optional("stands_for", g.stands_for);
}

void fields(auto& f, Is<Elementwise> auto& e) {
  f.required("grid", e.grid);
  f.optional("first", e.first);
  f.optional("count", e.count, -1);
  f.required("from", e.from);
  f.optional("factors", e.factors);
  f.required("to", e.to);
  f.optional("epilogue", e.epilogue);
  f.optional("bias", e.bias);
  f.optional("norm", e.norm);
  f.optional("norm_weight", e.norm_weight);
  f.optional("residual", e.residual);
  f.optional("sum", e.sum);
  f.optional("gates", e.gates);
  f.optional("notify", e.notify);
  f.optional("resources", e.resources, Elementwise{}.resources);
  f.optional("queue", e.queue, -1);
}

void fields(auto& f, Is<Attend> auto& a) {
  f.required("grid", a.grid);
  f.optional("first_token", a.first_token);
  f.required("q", a.q);
  f.optional("first_key", a.first_key);
  f.required("keys", a.keys);
  f.required("values", a.values);
  f.required("out", a.out);
  f.optional("lse", a.lse);
  f.optional("gates", a.gates);
  f.optional("notify", a.notify);
  f.optional("resources", a.resources, Attend{}.resources);
}

void fields(auto& f, Is<Merge::Part> auto& p) {
  f.optional("row", p.row);
  f.required("value", p.value);
  f.required("lse", p.lse);
}

void fields(auto& f, Is<Merge> auto& m) {
  f.required("grid", m.grid);
  f.required("parts", m.parts);
  f.required("to", m.to);
  f.optional("lse", m.lse);
  f.optional("gates", m.gates);
  f.optional("notify", m.notify);
  f.optional("resources", m.resources, Merge{}.resources);
}

void fields(auto& f, Is<AttendBackward> auto& a) {
  f.required("grid", a.grid);
  f.optional("first_token", a.first_token);
  f.required("q", a.q);
  f.required("grad", a.grad);
  f.required("attended", a.attended);
  f.required("lse", a.lse);
  f.optional("first_key", a.first_key);
  f.required("keys", a.keys);
  f.required("values", a.values);
  f.required("q_grad", a.q_grad);
  f.required("keys_grad", a.keys_grad);
  f.required("values_grad", a.values_grad);
  f.optional("gates", a.gates);
  f.optional("notify", a.notify);
  f.optional("resources", a.resources, AttendBackward{}.resources);
}

void fields(auto& f, Is<AssignSlots> auto& r) {
  f.required("ids", r.ids);
  f.required("row_of", r.row_of);
  f.required("slot_of", r.slot_of);
  f.required("counts", r.counts);
  f.required("dropped", r.dropped);
  f.optional("resources", r.resources, AssignSlots{}.resources);
}

void fields(auto& f, Is<MergeSlots> auto& m) {
  f.required("capacity", m.capacity);
  f.required("counts", m.counts);
  f.required("slot_of", m.slot_of);
  f.required("live", m.live);
  f.optional("merged_of", m.merged_of);
  f.optional("token_of", m.token_of);
  f.optional("row_of", m.row_of);
  f.optional("slot_at", m.slot_at);
  f.optional("resources", m.resources, MergeSlots{}.resources);
}

void fields(auto& f, Is<Await> auto& a) {
  f.required("counter", a.counter);
  f.required("target", a.target);
}

void fields(auto& f, Is<Notify> auto& n) {
  f.required("counter", n.counter);
  f.optional("value", n.value, 1);
}

void fields(auto& f, Is<Fill> auto& s) {
  f.required("slice", s.slice);
}

void fields(auto& f, Is<Collective> auto& c) {
  f.required("kind", c.kind);
  f.required("communicator", c.communicator);
  f.required("send", c.send);
  f.required("recv", c.recv);
  f.optional("send_rows", c.send_rows);
  f.optional("recv_rows", c.recv_rows);
  f.optional("resources", c.resources);
  f.optional("config", c.config);
}

void fields(auto& f, Is<Exchange::Message> auto& m) {
  f.required("peer", m.peer);
  f.required("slice", m.slice);
}

void fields(auto& f, Is<Exchange> auto& e) {
  f.required("communicator", e.communicator);
  f.optional("sends", e.sends);
  f.optional("receives", e.receives);
  f.optional("resources", e.resources);
}

void fields(auto& f, Is<Copy> auto& c) {
  f.required("from", c.from);
  f.required("to", c.to);
}

void fields(auto& f, Is<Broadcast> auto& b) {
  f.required("from", b.from);
  f.required("to", b.to);
}

void fields(auto& f, Is<Swap> auto& s) {
  f.required("a", s.a);
  f.required("b", s.b);
}

}  // namespace shingle::plan_json
