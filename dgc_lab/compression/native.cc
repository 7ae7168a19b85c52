// The step of Deep Gradient Compression on a CPU in float32: one call for the whole vector, one pass over its memory.
//
// selection.py has the same step in TensorFlow. Sums, products and comparisons are the same here and come in the same
// order, so both give the same bits; tests/compression/test_native.py compares them. Change both together.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/threadpool.h"

// One binary for every x86 processor: the loader picks the variant that the processor supports.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

namespace {

using namespace tensorflow;  // NOLINT

constexpr int64_t kBlock = 64;            // elements summarized by their largest magnitude
constexpr int64_t kChunk = 1024 * kBlock;  // elements that one thread handles at a time
constexpr size_t kMostBuffers = 16;
constexpr float kLargestHalf = 65504.0f, kSmallestHalf = 1.0f / (1 << 24);
constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t Parts(int64_t elements, int64_t size) { return (elements + size - 1) / size; }

template <typename Work>
void InParallel(OpKernelContext* ctx, int64_t total, int64_t cycles_each, Work work) {
  ctx->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(total, cycles_each, work);
}

// A stretch of one tensor inside the flat vector.
struct Chunk {
  int64_t tensor, begin, size, first_block, in_tensor;
};

std::vector<Chunk> ChunksOf(const std::vector<int64_t>& sizes) {
  std::vector<Chunk> chunks;
  int64_t begin = 0, block = 0;
  for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    for (int64_t done = 0; done < sizes[tensor]; done += kChunk) {
      const int64_t size = std::min(kChunk, sizes[tensor] - done);
      chunks.push_back({static_cast<int64_t>(tensor), begin + done, size, block, done});
      block += Parts(size, kBlock);
    }
    begin += sizes[tensor];
  }
  return chunks;
}

// Magnitudes compared as integers have the same order as floats, and NaN is above all of them.
inline int32_t MagnitudeBits(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffff;
}

// u' = m u + g and v' = v + u'; with Nesterov u' = m (u + g) and v' = v + g + u'; without a velocity v' = v + g.
// `maximum` is the largest |v'| of the block.
template <bool kVelocity, bool kNesterov>
inline __attribute__((always_inline)) void AccumulateBlock(const float* __restrict g, const float* __restrict u,
                                                           const float* __restrict v, float m, float* __restrict new_u,
                                                           float* __restrict new_v, float* maximum, int64_t size) {
  int32_t largest = 0;
  for (int64_t i = 0; i < size; ++i) {
    float sum = kVelocity && !kNesterov ? v[i] : v[i] + g[i];
    if (kVelocity) {
      new_u[i] = kNesterov ? m * (u[i] + g[i]) : m * u[i] + g[i];
      sum += new_u[i];
    }
    new_v[i] = sum;
    largest = std::max(largest, MagnitudeBits(sum));
  }
  std::memcpy(maximum, &largest, sizeof largest);
}

template <bool kVelocity, bool kNesterov>
inline __attribute__((always_inline)) void AccumulateBlocks(const float* g, const float* u, const float* v, float m,
                                                            float* new_u, float* new_v, float* maxima, int64_t size) {
  for (int64_t at = 0; at < size; at += kBlock, ++maxima) {
    if (size - at >= kBlock) {  // a size that the compiler knows
      AccumulateBlock<kVelocity, kNesterov>(g + at, u + at, v + at, m, new_u + at, new_v + at, maxima, kBlock);
    } else {
      AccumulateBlock<kVelocity, kNesterov>(g + at, u + at, v + at, m, new_u + at, new_v + at, maxima, size - at);
    }
  }
}

FOR_EACH_PROCESSOR void Accumulate(bool velocity, bool nesterov, const float* g, const float* u, const float* v,
                                   float m, float* new_u, float* new_v, float* maxima, int64_t size) {
  if (!velocity) {
    AccumulateBlocks<false, false>(g, u, v, m, new_u, new_v, maxima, size);
  } else if (nesterov) {
    AccumulateBlocks<true, true>(g, u, v, m, new_u, new_v, maxima, size);
  } else {
    AccumulateBlocks<true, false>(g, u, v, m, new_u, new_v, maxima, size);
  }
}

FOR_EACH_PROCESSOR void Maxima(const float* x, float* maxima, int64_t size) {
  for (int64_t at = 0; at < size; at += kBlock) {
    int32_t largest = 0;
    for (int64_t i = at; i < std::min(size, at + kBlock); ++i) {
      largest = std::max(largest, MagnitudeBits(x[i]));
    }
    std::memcpy(maxima + at / kBlock, &largest, sizeof largest);
  }
}

// Thresholds ----------------------------------------------------------------------------------------------------------

// k = ceil(share * n), with the share 1e-7 smaller than it is: thresholding.py says why.
int64_t Wanted(double share, int64_t elements) {
  return static_cast<int64_t>(std::ceil(share * (1 - 1e-7) * static_cast<double>(elements)));
}

// The k-th largest of some magnitudes, given as bits, whose order may change; infinity for k = 0.
float KthLargest(std::vector<int32_t>* magnitudes, int64_t k) {
  if (k == 0) return kInfinity;
  int32_t kth;
  if (k * 16 < static_cast<int64_t>(magnitudes->size())) {  // a heap of the k largest, its smallest on top
    std::vector<int32_t> heap(magnitudes->begin(), magnitudes->begin() + k);
    std::make_heap(heap.begin(), heap.end(), std::greater<int32_t>());
    for (auto other = magnitudes->begin() + k; other != magnitudes->end(); ++other) {
      if (*other <= heap.front()) continue;
      std::pop_heap(heap.begin(), heap.end(), std::greater<int32_t>());
      heap.back() = *other;
      std::push_heap(heap.begin(), heap.end(), std::greater<int32_t>());
    }
    kth = heap.front();
  } else {
    auto place = magnitudes->begin() + (k - 1);
    std::nth_element(magnitudes->begin(), place, magnitudes->end(), std::greater<int32_t>());
    kth = *place;
  }
  float value;
  std::memcpy(&value, &kth, sizeof value);
  return std::max(std::numeric_limits<float>::min(), value);
}

int64_t Passing(const float* x, int64_t size, float limit) {
  int64_t passing = 0;
  for (int64_t i = 0; i < size; ++i) passing += std::fabs(x[i]) >= limit;
  return passing;
}

// The threshold of one segment, read off every stride-th magnitude from `start` on; thresholding.py explains the rules.
float ThresholdOf(const float* x, int64_t size, double ratio, int64_t stride, int64_t start, bool hierarchical) {
  std::vector<int32_t> sample;
  sample.reserve(size / stride + 1);
  for (int64_t i = start; i < size; i += stride) sample.push_back(MagnitudeBits(x[i]));
  float limit = KthLargest(&sample, Wanted(ratio, sample.size()));
  if (!hierarchical || stride == 1) return limit;
  const double wanted = static_cast<double>(Wanted(ratio, size));
  double share = ratio, passing = static_cast<double>(Passing(x, size, limit));
  while (passing < 0.8 * wanted && share < 1) {
    share = std::min(2 * share, 1.0);
    limit = share < 1 ? KthLargest(&sample, Wanted(share, sample.size())) : std::numeric_limits<float>::min();
    passing = static_cast<double>(Passing(x, size, limit));
  }
  if (passing > 1.3 * wanted) {
    std::vector<int32_t> passed;
    for (int64_t i = 0; i < size; ++i) {
      if (std::fabs(x[i]) >= limit) passed.push_back(MagnitudeBits(x[i]));
    }
    limit = KthLargest(&passed, static_cast<int64_t>(wanted));
  }
  return limit;
}

// Thresholds of the segments of a flat vector.
class Thresholds : public OpKernel {
 public:
  explicit Thresholds(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("segments", &segments_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hierarchical", &hierarchical_));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES(ctx, ctx->input(0).NumElements() >= std::accumulate(segments_.begin(), segments_.end(), int64_t{0}),
                absl::InvalidArgumentError("x must be at least as long as all segments together"));
    Tensor* limits;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {static_cast<int64_t>(segments_.size())}, &limits));
    Find(ctx, ctx->input(0).flat<float>().data(), 1, limits->flat<float>().data());
  }

 protected:
  // Reads ratio, strides and starts from the inputs that begin at `first`.
  void Find(OpKernelContext* ctx, const float* x, int first, float* limits) const {
    const double ratio = ctx->input(first).scalar<double>()();
    const auto strides = ctx->input(first + 1).flat<int32_t>(), starts = ctx->input(first + 2).flat<int32_t>();
    if (ratio >= 1) {
      std::fill_n(limits, segments_.size(), 0.0f);
      return;
    }
    std::vector<int64_t> begins;
    int64_t end = 0;
    for (int64_t size : segments_) {
      begins.push_back(end);
      end += size;
    }
    InParallel(ctx, segments_.size(), 10 * end / strides(0) / segments_.size() + 1000, [&](int64_t i, int64_t last) {
      for (; i < last; ++i) {
        limits[i] = ThresholdOf(x + begins[i], segments_[i], ratio, strides(i), starts(i), hierarchical_);
      }
    });
  }

  std::vector<int64_t> segments_;
  bool hierarchical_;
};

// Accumulate and select -----------------------------------------------------------------------------------------------

// Buffers for results, used again once nobody reads them: fresh memory costs a page fault for every 4 KiB.
class Buffers {
 public:
  absl::Status Take(OpKernelContext* ctx, int64_t elements, Tensor* taken) {
    mutex_lock lock(mu_);
    for (const Tensor& buffer : buffers_) {
      if (buffer.NumElements() == elements && buffer.RefCountIsOne()) {
        *taken = buffer;
        return absl::OkStatus();
      }
    }
    TF_RETURN_IF_ERROR(ctx->allocate_temp(DT_FLOAT, {elements}, taken));
    if (buffers_.size() == kMostBuffers) buffers_.erase(buffers_.begin());
    buffers_.push_back(*taken);
    return absl::OkStatus();
  }

 private:
  mutex mu_;
  std::vector<Tensor> buffers_;
};

struct Entry {
  int32_t index;
  float value;
};

// The value that is sent: rounded to half precision if `half`. Values that are not finite stay so, and are noticed.
inline float Sent(float value, bool half) {
  if (!half || !std::isfinite(value)) return value;
  return static_cast<float>(Eigen::half(std::min(std::max(value, -kLargestHalf), kLargestHalf)));
}

// Inputs: gradients, one after another as in the flat vector; residual and velocity, as far as there are any (without
// a residual the gradient itself is selected from, and must be one tensor); ratio, strides and starts. Outputs: the new
// state; indices, ascending, and values of the selected elements.
class AccumulateAndSelect : public Thresholds {
 public:
  explicit AccumulateAndSelect(OpKernelConstruction* ctx) : Thresholds(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sizes", &sizes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("momentum", &momentum_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("nesterov", &nesterov_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("clear_velocity", &clear_velocity_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("round_to_half", &half_));
    chunks_ = ChunksOf(sizes_);
    for (int64_t size : sizes_) {
      elements_ += size;
      blocks_ += Parts(size, kBlock);
    }
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList gradients, state;
    OP_REQUIRES_OK(ctx, ctx->input_list("gradients", &gradients));
    OP_REQUIRES_OK(ctx, ctx->input_list("state", &state));
    const bool velocity = state.size() == 2;
    const int first = gradients.size() + state.size();
    const bool whole = gradients.size() == 1;
    bool fits = whole ? gradients[0].NumElements() == elements_ : gradients.size() == int(sizes_.size());
    for (int i = 0; fits && !whole && i < gradients.size(); ++i) fits = gradients[i].NumElements() == sizes_[i];
    OP_REQUIRES(ctx, fits,
                absl::InvalidArgumentError("gradients must have the sizes of the flat vector's tensors"));
    for (const Tensor& part : state) {
      OP_REQUIRES(ctx, part.NumElements() == elements_, absl::InvalidArgumentError("state must be as long as sizes"));
    }
    OP_REQUIRES(ctx, state.size() || whole,
                absl::InvalidArgumentError("gradients must be one tensor where there is no state"));

    Tensor made[2];
    for (int i = 0; i < state.size(); ++i) {
      OP_REQUIRES_OK(ctx, buffers_.Take(ctx, elements_, &made[i]));
      ctx->set_output(i, made[i]);
    }
    float* residual = state.size() ? made[0].flat<float>().data() : nullptr;
    float* new_velocity = velocity ? made[1].flat<float>().data() : residual;
    const float* source = residual ? residual : gradients[0].flat<float>().data();
    std::vector<float> maxima(blocks_);
    InParallel(ctx, chunks_.size(), 3 * kChunk, [&](int64_t i, int64_t last) {
      for (; i < last; ++i) {
        const Chunk& chunk = chunks_[i];
        float* largest = maxima.data() + chunk.first_block;
        if (!residual) {
          Maxima(source + chunk.begin, largest, chunk.size);
          continue;
        }
        const float* g = whole ? gradients[0].flat<float>().data() + chunk.begin
                               : gradients[chunk.tensor].flat<float>().data() + chunk.in_tensor;
        const float* v = state[0].flat<float>().data() + chunk.begin;
        const float* u = velocity ? state[1].flat<float>().data() + chunk.begin : v;
        Accumulate(velocity, nesterov_, g, u, v, momentum_, new_velocity + chunk.begin, residual + chunk.begin, largest,
                   chunk.size);
      }
    });

    std::vector<float> limits(segments_.size());
    if (elements_) Find(ctx, source, first, limits.data());
    // Momentum SGD where everything is sent.
    float* cleared = velocity && clear_velocity_ && ctx->input(first).scalar<double>()() < 1 ? new_velocity : nullptr;

    std::vector<std::vector<Entry>> found(chunks_.size());
    InParallel(ctx, chunks_.size(), kChunk, [&](int64_t i, int64_t last) {
      for (; i < last; ++i) {
        const Chunk& chunk = chunks_[i];
        float limit = limits[limits.size() == sizes_.size() ? chunk.tensor : 0];
        if (half_) limit = std::max(limit, kSmallestHalf);  // a value that would be sent as zero waits
        for (int64_t at = 0; at < chunk.size; at += kBlock) {
          // Not below: NaN is selected too, and then noticed.
          if (maxima[chunk.first_block + at / kBlock] < limit) continue;
          const int64_t end = chunk.begin + std::min(chunk.size, at + kBlock);
          for (int64_t j = chunk.begin + at; j < end; ++j) {
            if (std::fabs(source[j]) < limit) continue;
            const float value = source[j], sent = Sent(value, half_);
            found[i].push_back({static_cast<int32_t>(j), sent});
            if (residual) residual[j] = half_ ? value - sent : 0.0f;
            if (cleared) cleared[j] = 0.0f;
          }
        }
      }
    });
    int64_t entries = 0;
    for (const auto& part : found) entries += part.size();
    Tensor *indices, *values;
    OP_REQUIRES_OK(ctx, ctx->allocate_output("indices", {entries}, &indices));
    OP_REQUIRES_OK(ctx, ctx->allocate_output("values", {entries}, &values));
    int32_t* index = indices->flat<int32_t>().data();
    float* value = values->flat<float>().data();
    for (const auto& part : found) {
      for (const Entry& entry : part) {
        *index++ = entry.index;
        *value++ = entry.value;
      }
    }
  }

 private:
  std::vector<int64_t> sizes_;
  std::vector<Chunk> chunks_;
  int64_t elements_ = 0, blocks_ = 0;
  float momentum_;
  bool nesterov_, clear_velocity_, half_;
  Buffers buffers_;
};

// Subtracts `scale` times a mean from variables that follow each other in the flat vector: the mean is a whole vector,
// or, where that is empty, the sum of each worker's entries, whose indices ascend.
class Subtract : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OpInputList handles, indices, values;
    OP_REQUIRES_OK(ctx, ctx->input_list("variables", &handles));
    OP_REQUIRES_OK(ctx, ctx->input_list("indices", &indices));
    OP_REQUIRES_OK(ctx, ctx->input_list("values", &values));
    const Tensor *mean, *scaled_by;
    OP_REQUIRES_OK(ctx, ctx->input("mean", &mean));
    OP_REQUIRES_OK(ctx, ctx->input("scale", &scaled_by));
    const float scale = scaled_by->scalar<float>()();
    std::vector<Entries> workers;
    for (int i = 0; i < indices.size(); ++i) {
      OP_REQUIRES(ctx, indices[i].NumElements() == values[i].NumElements(),
                  absl::InvalidArgumentError("each worker needs as many values as indices"));
      workers.push_back({indices[i].flat<int32_t>().data(), values[i].flat<float>().data(), indices[i].NumElements()});
    }
    int64_t start = 0;
    for (int i = 0; i < handles.size(); ++i) {
      core::RefCountPtr<Var> variable;
      OP_REQUIRES_OK(ctx, LookupResource(ctx, HandleFromInput(ctx, i), &variable));
      mutex_lock lock(*variable->mu());
      if (!variable->tensor()->RefCountIsOne()) {  // somebody has read it, and must not see it change
        Tensor own;
        OP_REQUIRES_OK(ctx, ctx->allocate_temp(DT_FLOAT, variable->tensor()->shape(), &own));
        std::memcpy(own.flat<float>().data(), variable->tensor()->flat<float>().data(), own.TotalBytes());
        *variable->tensor() = own;
      }
      const int64_t size = variable->tensor()->NumElements(), end = start + size;
      float* weights = variable->tensor()->flat<float>().data();
      if (mean->NumElements()) {
        OP_REQUIRES(ctx, end <= mean->NumElements(), absl::InvalidArgumentError("mean must cover all variables"));
        const float* from = mean->flat<float>().data() + start;
        InParallel(ctx, size, 2, [&](int64_t j, int64_t last) {
          for (; j < last; ++j) weights[j] -= scale * from[j];
        });
      } else {
        Merge(ctx, &workers, start, end, scale, weights);
      }
      start = end;
    }
  }

 private:
  struct Entries {  // of a worker
    const int32_t* indices;
    const float* values;
    int64_t size;
    int64_t next = 0;  // the first entry that is not applied yet
  };

  // What several workers sent for one element is added up in their order before it is subtracted.
  void Merge(OpKernelContext* ctx, std::vector<Entries>* workers, int64_t start, int64_t end, float scale,
             float* weights) {
    while (true) {
      int64_t lowest = end;
      for (const Entries& own : *workers) {
        if (own.next < own.size) lowest = std::min<int64_t>(lowest, own.indices[own.next]);
      }
      if (lowest == end) return;
      OP_REQUIRES(ctx, lowest >= start, absl::InvalidArgumentError("indices must ascend from 0"));
      float sum = 0.0f;
      for (Entries& own : *workers) {
        if (own.next < own.size && own.indices[own.next] == lowest) sum += own.values[own.next++];
      }
      weights[lowest - start] -= scale * sum;
    }
  }
};

absl::Status StateAndEntries(shape_inference::InferenceContext* c) {
  std::vector<shape_inference::ShapeHandle> state;
  TF_RETURN_IF_ERROR(c->input("state", &state));
  for (size_t i = 0; i < state.size(); ++i) c->set_output(i, state[i]);
  const auto entries = c->Vector(c->UnknownDim());
  c->set_output(state.size(), entries);
  c->set_output(state.size() + 1, entries);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("DgcThresholds")
    .Input("x: float")
    .Input("ratio: double")
    .Input("strides: int32")
    .Input("starts: int32")
    .Output("limits: float")
    .Attr("segments: list(int)")
    .Attr("hierarchical: bool")
    .SetShapeFn([](shape_inference::InferenceContext* c) {
      c->set_output(0, c->input(2));
      return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("DgcThresholds").Device(DEVICE_CPU), Thresholds);

REGISTER_OP("DgcAccumulateAndSelect")
    .Input("gradients: parts * float")
    .Input("state: n * float")
    .Input("ratio: double")
    .Input("strides: int32")
    .Input("starts: int32")
    .Output("new_state: n * float")
    .Output("indices: int32")
    .Output("values: float")
    .Attr("parts: int >= 1")
    .Attr("n: int >= 0")
    .Attr("sizes: list(int)")
    .Attr("segments: list(int)")
    .Attr("hierarchical: bool")
    .Attr("momentum: float")
    .Attr("nesterov: bool")
    .Attr("clear_velocity: bool")
    .Attr("round_to_half: bool")
    .SetIsStateful()  // never folded into a constant, nor shared between two workers: it keeps buffers
    .SetShapeFn(StateAndEntries);
REGISTER_KERNEL_BUILDER(Name("DgcAccumulateAndSelect").Device(DEVICE_CPU), AccumulateAndSelect);

REGISTER_OP("DgcSubtract")
    .Input("variables: n * resource")
    .Input("indices: workers * int32")
    .Input("values: workers * float")
    .Input("mean: float")
    .Input("scale: float")
    .Attr("n: int >= 1")
    .Attr("workers: int >= 0")
    .SetIsStateful();
REGISTER_KERNEL_BUILDER(Name("DgcSubtract").Device(DEVICE_CPU), Subtract);
