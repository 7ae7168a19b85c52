// Algorithm 1 in one pass over memory, on a CPU in float32. What it does is written to be read in TensorFlow, in
// algorithm.py; here are the same sums and products in the same order, so the same bits.
//
// New velocities and residuals are written to spare variables. The state stays as it is until DgcKeep swaps the two,
// which the caller does once all workers have found their gradients finite.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/threadpool.h"

// The fastest code that the running processor has, whichever one it was built on.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

namespace {

using namespace tensorflow;  // NOLINT

constexpr int64_t kBlock = 64;          // elements whose largest magnitude says whether one of them is to be sent
constexpr int64_t kBlocksAtOnce = 1024;  // opened by one thread
constexpr float kLargestHalf = 65504.0f, kSmallestHalf = 1.0f / (1 << 24);

int64_t Parts(int64_t elements, int64_t size) { return (elements + size - 1) / size; }

template <typename Work>
void InParallel(OpKernelContext* ctx, int64_t total, int64_t cycles_each, Work work) {
  ctx->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(total, cycles_each, work);
}

// u' = m u + g and v' = v + u'; with Nesterov u' = m (u + g) and v' = v + g + u'; without a velocity v' = v + g.
// Of each block the largest |v'|: as integers magnitudes have the same order, and NaN is above all, so that it shows.
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
    int32_t bits;
    std::memcpy(&bits, &sum, sizeof bits);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  std::memcpy(maximum, &largest, sizeof largest);
}

template <bool kVelocity, bool kNesterov>
inline __attribute__((always_inline)) void AccumulateBlocks(const float* g, const float* u, const float* v, float m,
                                                            float* new_u, float* new_v, float* maxima, int64_t elements,
                                                            int64_t first, int64_t last) {
  for (int64_t block = first; block < last; ++block) {
    const int64_t at = block * kBlock, left = elements - at;
    if (left >= kBlock) {  // a number that the compiler knows
      AccumulateBlock<kVelocity, kNesterov>(g + at, u + at, v + at, m, new_u + at, new_v + at, maxima + block, kBlock);
    } else {
      AccumulateBlock<kVelocity, kNesterov>(g + at, u + at, v + at, m, new_u + at, new_v + at, maxima + block, left);
    }
  }
}

FOR_EACH_PROCESSOR void AccumulateAll(bool velocity, bool nesterov, const float* g, const float* u, const float* v,
                                      float m, float* new_u, float* new_v, float* maxima, int64_t elements,
                                      int64_t first, int64_t last) {
  if (!velocity) {
    AccumulateBlocks<false, false>(g, u, v, m, new_u, new_v, maxima, elements, first, last);
  } else if (nesterov) {
    AccumulateBlocks<true, true>(g, u, v, m, new_u, new_v, maxima, elements, first, last);
  } else {
    AccumulateBlocks<true, false>(g, u, v, m, new_u, new_v, maxima, elements, first, last);
  }
}

// Inputs: the gradient; residual and, where it is wanted, velocity; as many spares. Outputs: what the spares now hold,
// as flat tensors that share their memory, and the largest magnitude of each block of the residual.
class Accumulate : public OpKernel {
 public:
  explicit Accumulate(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("momentum", &momentum_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("nesterov", &nesterov_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& gradient = ctx->input(0);
    const int64_t elements = gradient.NumElements();
    const int n = (ctx->num_inputs() - 1) / 2;
    Tensor old[2], made[2];
    for (int i = 0; i < n; ++i) {
      core::RefCountPtr<Var> state, spare;
      OP_REQUIRES_OK(ctx, LookupResource(ctx, HandleFromInput(ctx, 1 + i), &state));
      OP_REQUIRES_OK(ctx, LookupResource(ctx, HandleFromInput(ctx, 1 + n + i), &spare));
      {
        tf_shared_lock lock(*state->mu());
        old[i] = *state->tensor();
      }
      OP_REQUIRES(ctx, old[i].dtype() == DT_FLOAT && old[i].NumElements() == elements,
                  absl::InvalidArgumentError("state must be float32, with as many elements as the gradient"));
      mutex_lock lock(*spare->mu());
      if (!spare->tensor()->RefCountIsOne() || spare->tensor()->shape() != old[i].shape()) {  // somebody reads it still
        OP_REQUIRES_OK(ctx, ctx->allocate_temp(DT_FLOAT, old[i].shape(), &made[i]));
        *spare->tensor() = made[i];
      }
      OP_REQUIRES(ctx, made[i].CopyFrom(*spare->tensor(), gradient.shape()), absl::InternalError("shapes differ"));
      ctx->set_output(i, made[i]);
    }
    Tensor* maxima;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(n, {Parts(elements, kBlock)}, &maxima));
    const bool velocity = n == 2;
    const float *g = gradient.flat<float>().data(), *v = old[0].flat<float>().data();
    const float* u = velocity ? old[1].flat<float>().data() : v;
    float *new_v = made[0].flat<float>().data(), *new_u = velocity ? made[1].flat<float>().data() : new_v;
    float* largest = maxima->flat<float>().data();
    InParallel(ctx, Parts(elements, kBlock), 3 * kBlock, [&](int64_t first, int64_t last) {
      AccumulateAll(velocity, nesterov_, g, u, v, momentum_, new_u, new_v, largest, elements, first, last);
    });
  }

 private:
  float momentum_;
  bool nesterov_;
};

// What is sent for a value; `left` is what sending it leaves behind.
inline void Send(float value, float* sent, float* left) {
  *sent = value;
  *left = 0.0f;
}
inline void Send(float value, Eigen::half* sent, float* left) {
  *sent = Eigen::half(std::min(std::max(value, -kLargestHalf), kLargestHalf));
  *left = value - static_cast<float>(*sent);
}

// The state of DgcTake and DgcTakeMasked: residual and, where there is one, velocity, which they change in place.
struct Taken {
  float *residual, *velocity = nullptr;
  int64_t elements;

  Taken(OpKernelContext* ctx, bool clears) {
    OpInputList state;
    OP_REQUIRES_OK(ctx, ctx->input_list("state", &state));
    for (int i = 0; i < state.size(); ++i) ctx->set_output(i, state[i]);
    residual = const_cast<float*>(state[0].flat<float>().data());
    elements = state[0].NumElements();
    if (clears && state.size() == 2) velocity = const_cast<float*>(state[1].flat<float>().data());
  }
};

// Takes out what passes the limit, as values of type T and their indices, ascending.
template <typename T>
class Take : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Taken state(ctx, ctx->input(ctx->num_inputs() - 1).scalar<bool>()());
    const Tensor& maxima = ctx->input(ctx->num_inputs() - 3);
    float limit = ctx->input(ctx->num_inputs() - 2).scalar<float>()();
    if (std::is_same<T, Eigen::half>::value) limit = std::max(limit, kSmallestHalf);  // what would be zero waits
    const float* largest = maxima.flat<float>().data();
    const int64_t blocks = maxima.NumElements(), parts = Parts(blocks, kBlocksAtOnce);
    std::vector<std::vector<std::pair<int32_t, T>>> found(parts);
    InParallel(ctx, parts, kBlocksAtOnce * kBlock, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        const int64_t end = std::min(blocks, (part + 1) * kBlocksAtOnce);
        for (int64_t block = part * kBlocksAtOnce; block < end; ++block) {
          if (largest[block] < limit) continue;  // NaN is not: others in its block may pass
          const int64_t stop = std::min(state.elements, (block + 1) * kBlock);
          for (int64_t i = block * kBlock; i < stop; ++i) {
            if (!(std::fabs(state.residual[i]) >= limit)) continue;
            found[part].emplace_back(static_cast<int32_t>(i), T());
            Send(state.residual[i], &found[part].back().second, &state.residual[i]);
            if (state.velocity) state.velocity[i] = 0.0f;
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
    T* value = values->flat<T>().data();
    for (const auto& part : found) {
      for (const auto& entry : part) {
        *index++ = entry.first;
        *value++ = entry.second;
      }
    }
  }
};

FOR_EACH_PROCESSOR int64_t TakeMaskedAll(float limit, float* residual, float* velocity, float* masked, int64_t first,
                                         int64_t last) {
  int64_t kept = 0;
  for (int64_t i = first; i < last; ++i) {
    const bool passes = std::fabs(residual[i]) >= limit;
    masked[i] = passes ? residual[i] : 0.0f;
    residual[i] = passes ? 0.0f : residual[i];
    if (velocity) velocity[i] = passes ? 0.0f : velocity[i];
    kept += passes;
  }
  return kept;
}

// The same with zeros between what passes, which is not rounded then.
class TakeMasked : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Taken state(ctx, ctx->input(ctx->num_inputs() - 1).scalar<bool>()());
    const float limit = ctx->input(ctx->num_inputs() - 2).scalar<float>()();
    Tensor *masked, *kept;
    OP_REQUIRES_OK(ctx, ctx->allocate_output("masked", {state.elements}, &masked));
    OP_REQUIRES_OK(ctx, ctx->allocate_output("kept", {}, &kept));
    float* out = masked->flat<float>().data();
    std::atomic<int64_t> count{0};
    InParallel(ctx, state.elements, 2, [&](int64_t first, int64_t last) {
      count += TakeMaskedAll(limit, state.residual, state.velocity, out, first, last);
    });
    kept->scalar<int64_t>()() = count;
  }
};

// Swaps a variable with its spare, which holds the value. It waits for the value, and thus for all that made it.
class Keep : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    core::RefCountPtr<Var> variable, spare;
    OP_REQUIRES_OK(ctx, LookupResource(ctx, HandleFromInput(ctx, 0), &variable));
    OP_REQUIRES_OK(ctx, LookupResource(ctx, HandleFromInput(ctx, 1), &spare));
    mutex_lock lock(*variable->mu());
    mutex_lock other(*spare->mu());
    // A tensor without elements has no buffer to share.
    OP_REQUIRES(ctx, !ctx->input(2).NumElements() || spare->tensor()->SharesBufferWith(ctx->input(2)),
                absl::InternalError("the spare holds another value"));
    std::swap(*variable->tensor(), *spare->tensor());
  }
};

// Adds entries to variables that are numbered through as one, a worker at a time: indices ascend, and none is twice.
class AddEntries : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OpInputList handles, indices, values;
    OP_REQUIRES_OK(ctx, ctx->input_list("variables", &handles));
    OP_REQUIRES_OK(ctx, ctx->input_list("indices", &indices));
    OP_REQUIRES_OK(ctx, ctx->input_list("values", &values));
    std::vector<int64_t> next(indices.size(), 0);  // of each worker, the first entry that is not added yet
    int64_t start = 0;
    for (int i = 0; i < handles.size(); ++i) {
      core::RefCountPtr<Var> variable;
      OP_REQUIRES_OK(ctx, LookupResource(ctx, HandleFromInput(ctx, i), &variable));
      mutex_lock lock(*variable->mu());
      if (!variable->tensor()->RefCountIsOne()) {  // somebody has read it, and must not see it change
        Tensor own;
        OP_REQUIRES_OK(ctx, ctx->allocate_temp(DT_FLOAT, variable->tensor()->shape(), &own));
        own.flat<float>() = variable->tensor()->flat<float>();
        *variable->tensor() = own;
      }
      auto elements = variable->tensor()->flat<float>();
      const int64_t end = start + elements.size();
      for (int worker = 0; worker < indices.size(); ++worker) {
        const auto index = indices[worker].flat<int32_t>();
        const auto value = values[worker].flat<float>();
        int64_t& entry = next[worker];
        for (; entry < index.size() && index(entry) < end; ++entry) {
          OP_REQUIRES(ctx, index(entry) >= start, absl::InvalidArgumentError("indices must ascend from 0"));
          elements(index(entry) - start) += value(entry);
        }
      }
      start = end;
    }
  }
};

absl::Status LikeTheGradient(shape_inference::InferenceContext* c) {
  for (int i = 0; i + 1 < c->num_outputs(); ++i) c->set_output(i, c->input(0));
  c->set_output(c->num_outputs() - 1, c->UnknownShapeOfRank(1));
  return absl::OkStatus();
}

absl::Status LikeTheState(shape_inference::InferenceContext* c, bool masked) {
  const int n = c->num_outputs() - 2;
  for (int i = 0; i < n; ++i) c->set_output(i, c->input(i));
  c->set_output(n, masked ? c->input(0) : c->UnknownShapeOfRank(1));
  c->set_output(n + 1, masked ? c->Scalar() : c->UnknownShapeOfRank(1));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("DgcAccumulate")
    .Input("gradient: float")
    .Input("state: n * resource")
    .Input("spares: n * resource")
    .Output("made: n * float")
    .Output("maxima: float")
    .Attr("n: int >= 1")
    .Attr("momentum: float")
    .Attr("nesterov: bool")
    .SetIsStateful()
    .SetShapeFn(LikeTheGradient);
REGISTER_KERNEL_BUILDER(Name("DgcAccumulate").Device(DEVICE_CPU), Accumulate);

REGISTER_OP("DgcTake")
    .Input("state: n * float")
    .Input("maxima: float")
    .Input("limit: float")
    .Input("clears: bool")
    .Output("taken: n * float")
    .Output("indices: int32")
    .Output("values: T")
    .Attr("n: int >= 1")
    .Attr("T: {float, half}")
    .SetIsStateful()
    .SetShapeFn([](shape_inference::InferenceContext* c) { return LikeTheState(c, false); });
REGISTER_KERNEL_BUILDER(Name("DgcTake").Device(DEVICE_CPU).TypeConstraint<float>("T"), Take<float>);
REGISTER_KERNEL_BUILDER(Name("DgcTake").Device(DEVICE_CPU).TypeConstraint<Eigen::half>("T"), Take<Eigen::half>);

REGISTER_OP("DgcTakeMasked")
    .Input("state: n * float")
    .Input("limit: float")
    .Input("clears: bool")
    .Output("taken: n * float")
    .Output("masked: float")
    .Output("kept: int64")
    .Attr("n: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](shape_inference::InferenceContext* c) { return LikeTheState(c, true); });
REGISTER_KERNEL_BUILDER(Name("DgcTakeMasked").Device(DEVICE_CPU), TakeMasked);

REGISTER_OP("DgcKeep").Input("variable: resource").Input("spare: resource").Input("value: float").SetIsStateful();
REGISTER_KERNEL_BUILDER(Name("DgcKeep").Device(DEVICE_CPU), Keep);

REGISTER_OP("DgcAddEntries")
    .Input("variables: n * resource")
    .Input("indices: workers * int32")
    .Input("values: workers * float")
    .Attr("n: int >= 1")
    .Attr("workers: int >= 1")
    .SetIsStateful();
REGISTER_KERNEL_BUILDER(Name("DgcAddEntries").Device(DEVICE_CPU), AddEntries);
