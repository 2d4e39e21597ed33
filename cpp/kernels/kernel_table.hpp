// The one header through which the core sees the kernels: plain C types, no templates, no inline functions.
// Every ISA exports one KernelTable; all else in this folder has internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headway {

// kInt8 and kFloat8 (OCP's E4M3, without infinities) are what keys and values of a cache may be, under float32 queries.
enum class ElementKind : std::int32_t { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBFloat16 = 3, kInt8 = 4, kFloat8 = 5 };
inline constexpr int kNumElementKinds = 4;  // of queries, results, and projections
inline constexpr int kNumKeyKinds = 6;

// What store_scores writes for each (query row, key).
enum class ScoreStage : std::int32_t {
  kScaled,   // scale * q.k, whether or not the row may see the key
  kCapped,   // after the soft cap, likewise
  kMasked,   // after ALiBi and the numbers of a mask, too; -inf where the key is hidden
  kWeights,  // exp(score - lse), 0 where the key is hidden; then dropout; needs the spans attended first
};

// What the elements of a mask are: bytes, 0 = hidden; or numbers that are added to the scores, -inf = hidden.
enum class MaskKind : std::int32_t { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBFloat16 = 3, kBool = 4 };

// Which weights are left out of the context, though not out of their sum: those whose word, see philox.hpp, is below the
// threshold. What is kept counts `scale` times.
struct Dropout {
  bool drops;  // false: the rest means nothing
  std::uint32_t threshold;
  std::uint32_t seed_low, seed_high;
  std::uint32_t batch, head;  // of the words' counters; head: the first one of the group
  double scale;               // 1 / (1 - probability to be dropped)
};

// What acts on the scores of a task beside its scale, in this order: soft cap, ALiBi, the mask's numbers, hiding, sinks;
// and on the weights.
struct ScoreOptions {
  double softcap;        // score <- softcap * tanh(score / softcap); 0: no cap
  const double* slopes;  // (group): score <- score - slope * |position - key|; or null
  const double* sinks;   // (group): one more score in the softmax's sum, -inf for none; or null
  const void* mask;      // (num_queries, group, keys); or null. Its strides count elements
  MaskKind mask_kind;
  std::ptrdiff_t mask_token_stride, mask_head_stride, mask_key_stride;
  Dropout dropout;
};

// Where keys and values lie in pages of equal size: key j in page table[(j / size) % count], slot j % size. So a ring is
// one page that is used over and over. Strides between pages count elements.
struct KeyPages {
  const std::int64_t* table;  // null: all in one piece
  std::int64_t count, size;
  std::ptrdiff_t k_stride, v_stride;
  // Of kInt8: an element is a number times the scale of its key's slot.
  const float* k_scales;
  const float* v_scales;
  std::ptrdiff_t k_scale_stride, v_scale_stride;              // between pages
  std::ptrdiff_t k_scale_token_stride, v_scale_token_stride;  // between slots
};

// No limit, for AttentionTask::left and right.
inline constexpr std::int64_t kNoLimit = std::int64_t{1} << 61;

// A block of query rows that share one key head of one batch entry. Row r is query head r % group of the group
// and token r / group, so that the heads of a group fill the vector lanes together. Strides count elements.
struct AttentionTask {
  const void* q;    // (num_queries, group, head_dim)
  const void* k;    // (num_keys, head_dim), or the first page's
  const void* v;    // (num_keys, value_dim), likewise
  void* out;        // (num_queries, group, value_dim), or (num_queries, group, num_keys) for store_scores
  std::ptrdiff_t q_token_stride, q_head_stride;
  std::ptrdiff_t k_token_stride, v_token_stride;
  std::ptrdiff_t out_token_stride, out_head_stride;
  std::int64_t group, head_dim, value_dim;
  std::int64_t num_keys;             // that any row may see
  std::int64_t first_row, num_rows;  // num_rows <= KindKernels::rows_per_task
  std::int64_t first_position;       // key position of token 0, at most 2^62 away
  std::int64_t left, right;          // token t at position p = first_position + t sees keys p - left .. p + right;
                                     // causal: right = 0
  double scale;
  ScoreOptions options;
  KeyPages pages;
  bool cold;                         // first of its thread to read these keys and values, others or none before: they are
                                     // fetched ahead
  std::int64_t keys_read;            // up to this key, at most num_keys; then its thread goes on
  const AttentionTask* next;         // with this task, as far as can be told, from next_key on; or null
  std::int64_t next_key;
  bool wide_out;                     // out holds the accumulation type, not the type of q
  void* workspace;                   // workspace_bytes, 64-byte aligned, kept from begin to finish
  void* kept_mask;                   // kept_mask_bytes, 64-byte aligned: of a mask that tasks for the same rows of other
                                     // heads share, at most kKeysPerSpan keys; or null
  bool mask_is_kept;                 // such a task left it there
};

// The steps of one task, in order: begin; attend_span for each span of keys, ascending; finish. Or the spans on several
// threads: each begins a copy of the task with a workspace of its own and attends one span; the copies are joined, in
// ascending order of spans, to one more copy that has only begun, and that one is finished. The bits are the same.
struct KindKernels {
  std::int64_t rows_per_panel;  // rows that one pass over the keys serves
  std::int64_t rows_per_task;   // a whole number of panels
  std::size_t (*workspace_bytes)(std::int64_t head_dim, std::int64_t value_dim);
  std::size_t kept_mask_bytes;
  void (*begin)(const AttentionTask& task);
  void (*attend_span)(const AttentionTask& task, std::int64_t key_begin, std::int64_t key_end);
  void (*join)(const AttentionTask& total, const AttentionTask& part);
  // Writes the context rows; reference and sum, unless they are null, get num_rows values each:
  // lse = reference + log(sum), and sum = 0 for a row that saw nothing.
  void (*finish)(const AttentionTask& task, double* reference, double* sum);
  void (*store_scores)(const AttentionTask& task, std::int64_t key_begin, std::int64_t key_end, ScoreStage stage);
};

// Rows of bytes that will be read soon.
struct RowsAhead {
  const void* data;
  std::ptrdiff_t stride, width;  // in bytes
  std::int64_t rows;
};

// The backward pass over one key head of one batch entry: chunks of keys, ascending, and for each chunk the blocks of rows
// that see some of its keys, ascending. Strides count elements.
struct BackwardTask {
  AttentionTask forward;       // what the forward pass read, and its results: out; first_row, num_rows: the block of rows
  const void* grad_out;        // (num_queries, group, value_dim): gradient at the context
  const void* lse;             // (num_queries, group) in the accumulation type, as the forward pass gave it
  const void* grad_lse;        // (num_queries, group), gradient at the lse; or null
  void* delta;                 // (num_queries, group): what row_deltas writes, the others read
  void* query_sums;            // sums_bytes, 64-byte aligned: gradient of the block of rows so far
  void *dq, *dk, *dv;          // (num_queries, group, head_dim), (num_keys, head_dim), (num_keys, value_dim)
  void* score_gradients;       // (num_queries, group, num_keys): written instead of all others, unless it is null
  std::ptrdiff_t grad_token_stride, grad_head_stride;
  std::ptrdiff_t lse_token_stride, lse_head_stride;
  std::ptrdiff_t grad_lse_token_stride, grad_lse_head_stride;
  std::ptrdiff_t delta_token_stride, delta_head_stride;
  std::ptrdiff_t dq_token_stride, dq_head_stride;
  std::ptrdiff_t dk_token_stride, dv_token_stride;
  std::ptrdiff_t score_token_stride, score_head_stride;
  bool wide_grad;              // grad_out and out hold the accumulation type, not the type of q
  const RowsAhead* ahead;      // (num_ahead): what add_rows may fetch beside its products
  int num_ahead;
};

// For a chunk of keys: begin_keys; add_rows for each block of rows; finish_keys. finish_rows for a block of rows after its
// last chunk; before its first one, query_sums are all 0.
struct BackwardKernels {
  std::int64_t rows_per_block;
  std::int64_t (*keys_per_chunk)(std::int64_t head_dim, std::int64_t value_dim);  // divides kKeysPerSpan; no bits depend on it
  std::size_t (*workspace_bytes)(std::int64_t head_dim, std::int64_t value_dim);
  std::size_t (*sums_bytes)(std::int64_t head_dim);
  bool fetches_ahead;  // makes use of BackwardTask::ahead
  bool exact;  // takes wide_grad and gives score_gradients; else another ISA's kernels serve for these
  void (*row_deltas)(const BackwardTask& task);
  void (*begin_keys)(const BackwardTask& task, std::int64_t key_begin, std::int64_t key_end);
  void (*add_rows)(const BackwardTask& task);
  void (*finish_keys)(const BackwardTask& task);
  void (*finish_rows)(const BackwardTask& task);
};

// Rows of x times some columns of a packed weight: out = x (num_rows, d_in) . panels (d_in, num_columns) + bias.
// The first column is that of a panel, and all panels but the last one of the weight are whole.
struct ProjectionTask {
  const void* const* x_rows;  // (num_rows): each (d_in)
  const void* panels;
  const void* next_panels;    // what the thread will likely multiply with after this task
  const void* bias;           // (num_columns), or null
  const void* const* added_rows;  // (num_rows): each (num_columns) in the accumulation type, added to the sums; or null
  void* const* out_rows;      // (num_rows): each (num_columns)
  std::int64_t num_rows, num_columns;  // 1 .. rows_per_task, columns_per_task
  std::int64_t d_in;
  bool wide_out;              // out holds the accumulation type, not the type of x
  void* workspace;            // workspace_bytes, 64-byte aligned
};

struct ProjectionKernels {
  std::int64_t lanes;                // a packed panel has its columns padded to a multiple of this
  std::int64_t depth_step;           // and its rows, d_in of them, to a multiple of this
  std::int64_t columns_per_panel, columns_per_task;  // of a task: at most, a whole number of panels
  std::int64_t rows_per_tile, rows_per_task;         // likewise
  std::size_t (*workspace_bytes)();
  // Columns of weight (d_in, num_columns) with this stride between its rows -> one panel, 64-byte aligned.
  void (*pack)(const void* weight, std::ptrdiff_t row_stride, std::int64_t d_in, std::int64_t num_columns, void* panel);
  void (*project)(const ProjectionTask& task);
};

// Rotates the first 2 * num_pairs numbers of each row, and copies the others. Halves: number i pairs with i + num_pairs;
// a and b become a cos - b sin and b cos + a sin. Interleaved: 2i pairs with 2i + 1. out may be x, row by row.
struct RotationTask {
  const void* x;  // (num_rows, width)
  void* out;      // (num_rows, width)
  std::ptrdiff_t x_stride, out_stride;  // between rows, in elements
  std::int64_t num_rows, width, num_pairs;
  const void* cosines;  // in the accumulation type: (num_pairs); interleaved: (2 * num_pairs), each one twice
  const void* sines;    // (num_pairs); interleaved: (2 * num_pairs), each one twice, -sin and sin
  bool interleaved;
  bool wide_out;        // out holds the accumulation type, not the type of x
};

// An ISA that brings only some kernels of its own names the one whose kernels serve for the rest: there, what is
// empty here (a null pointer in a KindKernels or ProjectionKernels, or among the rotations) is looked up.
struct KernelTable {
  const char* name;
  const KernelTable* base;
  KindKernels kinds[kNumKeyKinds];                  // by ElementKind of the keys
  BackwardKernels backward[kNumElementKinds];       // by ElementKind
  ProjectionKernels projections[kNumElementKinds];  // likewise
  void (*rotations[kNumElementKinds])(const RotationTask& task);
  // By ElementKind, null where the ISA multiplies no such numbers: 2 * multiply-adds done by `rounds` rounds of
  // independent ones in registers: the peak the CPU can reach.
  double (*bursts[kNumElementKinds])(std::int64_t rounds);
};

// Keys are summed in spans of this many, joined in key order; spans start at multiples of it, whatever the query,
// so that the bits of a row do not depend on how the work is cut.
inline constexpr std::int64_t kKeysPerSpan = 1024;

extern const KernelTable kScalarTable;
extern const KernelTable kNeonTable;
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
extern const KernelTable kAvx512Bf16Table;
extern const KernelTable kAmxTable;

}  // namespace headway
