// Lagom (co-tuning), §3.2 and §4.3: its cost model, Eq. 1 to 6, on an A40 with 84 SMs.
//
// Input: Lagom's configurations of Pattern 1 (Phi-2 under FSDP on eight A40 with NVLink). The paper has
// neither times nor V. Assumed: a layer's all-gather and forward pass by the model's sizes, and how fast a
// channel is. Fitted: V, to AutoCCL's 0.87. Predicted: Lagom's gain, and Figure 3 by Eq. 5 alone.
#include "figures.hpp"
#include "shingle/machine/machine.hpp"

using namespace shingle;

namespace {

constexpr double sms = 84;                                // λ
constexpr double memory_gbps = 696, memory_share = 0.35;  // of an A40; assumed
constexpr double layer_bytes = 2.7e9 / 32 * 2;  // Phi-2: 2.7 G parameters in 32 layers, two bytes each
constexpr double layer_flops = 2 * (layer_bytes / 2) * 4096;  // two sequences of 2048 tokens
constexpr double sustained_tflops = 90;                       // of 150 with sparsity off
constexpr double compute_us = layer_flops / sustained_tflops * 1e-6;
constexpr double link_gbps = 50, channel_link_gbps = 22;  // NVLink of 400 Gb/s; a channel alone; assumed

struct Config {
  double channels;  // NC
  double chunk;     // C, bytes
};

/// All-gather among eight: the link is full with some channels; small chunks cost a little more.
double communication_us(const Config& at) {
  const double gbps = std::min(at.channels * channel_link_gbps, link_gbps) * at.chunk / (at.chunk + 4096);
  return layer_bytes * 7 / 8 / (gbps * 1e3);
}

/// Eq. 5 and 6: waves on the SMs that are left, each with the memory that is left.
double slowdown(const Config& at, const Contention& contention) {
  const double taken = std::min(contention.traffic_gbps(at.channels, at.chunk), 0.95 * memory_gbps);
  const double wave = 1 - memory_share + memory_share * memory_gbps / (memory_gbps - taken);
  return sms / (sms - at.channels) * wave;
}

/// Eq. 4: the waves beside the collective are slower, those after it are not. Eq. 1: the later of the two.
double overlap_us(const Config& at, const Contention& contention) {
  const double x = communication_us(at), s = slowdown(at, contention);
  const double y = x / s < compute_us ? compute_us + x * (1 - 1 / s) : compute_us * s;
  return std::max(x, y);
}

constexpr Config nccl{8, 2 << 20}, autoccl{61, 2 << 20}, lagom{2, 684 << 10};

/// V, by bisection: with it AutoCCL's configuration is as much slower than NCCL's as the paper measured.
Contention fitted_contention(double autoccl_speed) {
  Contention contention;
  contention.chunk_bytes = 256 << 10;
  double low = 0, high = memory_gbps / nccl.channels;
  for (int i = 0; i < 60; ++i) {
    contention.channel_gbps = (low + high) / 2;
    const double ratio = overlap_us(nccl, contention) / overlap_us(autoccl, contention);
    (ratio < autoccl_speed ? low : high) = contention.channel_gbps;
  }
  return contention;
}

}  // namespace

int main(int argc, char** argv) {
  papers::Figures figures("Lagom's cost model, on an A40", argc, argv);
  figures.at("Fig. 3", "Eq. 5, 84 SMs");
  // As many waves more as there are fewer SMs.
  figures.near("FFN beside an all-reduce, 32 channels over 16", 30.2, 100 * ((sms - 16) / (sms - 32) - 1),
               "%");
  const Contention contention = fitted_contention(0.87);
  const double base = overlap_us(nccl, contention);
  figures.at("Fig. 8a, §4.3", "Eq. 1 to 6, fitted V");
  figures.fitted("Pattern 1, AutoCCL's 61 channels over NCCL's 8", 0.87,
                 base / overlap_us(autoccl, contention), "x");
  figures.near("Pattern 1, Lagom's 2 channels of 684 KB", 1.35, base / overlap_us(lagom, contention), "x");
  return figures.finish();
}
