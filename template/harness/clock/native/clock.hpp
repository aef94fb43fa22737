// Included before every generated kernel: PTO-ISA's headers in their cost-model personality, repaired where that mode
// lacks something, with our recorder in the place of their trace.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __COSTMODEL 1
#define __NPU_ARCH__ 2201
#define __CCE_AICORE__ 220
#define PTO_COMM_NOT_SUPPORTED 1
typedef _Float16 half;

// The headers are read as for a cube core, so that one precompiled header serves both kinds: generated code uses nothing
// that differs there. Code that does says which kind it is for.
#if !defined(__DAV_CUBE__) && !defined(__DAV_VEC__)
#define VCLOCK_EITHER
#define __DAV_CUBE__ 1
#define __DAV_C220_CUBE__ 1
#endif

#include <pto/costmodel/common/qualifiers.hpp>
#include <pto/costmodel/trace.hpp>

inline uint32_t get_block_idx() { return vclock::recorder.order.block; }
inline uint32_t get_block_num() { return vclock::recorder.order.blocks; }
inline uint32_t get_subblockdim() { return 2; }

// The cost model gives PIPE_FIX the number of PIPE_S, and a few instructions an empty catch-all overload, which would
// make a call with unexpected arguments free of charge in silence: hide both under other names.
#define PIPE_FIX pipe_fix_alias_of_s
#define copy_cbuf_to_gm uncosted_copy_cbuf_to_gm
#define copy_matrix_cc_to_gm uncosted_copy_matrix_cc_to_gm
#define copy_ubuf_to_gm_align_b16 uncosted_copy_ubuf_to_gm_align_b16
#define copy_ubuf_to_gm_align_b32 uncosted_copy_ubuf_to_gm_align_b32
#define copy_ubuf_to_gm_align_b8 uncosted_copy_ubuf_to_gm_align_b8
#define scatter_vnchwconv_b16 uncosted_scatter_vnchwconv_b16
#define scatter_vnchwconv_b32 uncosted_scatter_vnchwconv_b32
#define scatter_vnchwconv_b8 uncosted_scatter_vnchwconv_b8
#include <pto/costmodel/a2a3/cce_costmodel/cce_costmodel_core.hpp>
#undef PIPE_FIX
#undef copy_cbuf_to_gm
#undef copy_matrix_cc_to_gm
#undef copy_ubuf_to_gm_align_b16
#undef copy_ubuf_to_gm_align_b32
#undef copy_ubuf_to_gm_align_b8
#undef scatter_vnchwconv_b16
#undef scatter_vnchwconv_b32
#undef scatter_vnchwconv_b8
inline constexpr pipe_t PIPE_FIX = vclock::FIX;

// Keep what the two estimators are asked (repeats, bytes): count-mode instructions and the scheduler need it.
namespace vclock {
namespace evaluator = pto::mocker::evaluator;

inline uint64_t estimate_linear(PipeKey, uint64_t repeat, uint64_t head = 6, uint64_t slope = 2, uint64_t tail = 0)
{
    recorder.linear = true;
    recorder.repeat = repeat;
    recorder.head = head;
    recorder.slope = slope;
    recorder.tail = uint16_t(tail);
    return slope * repeat;
}
inline uint64_t estimate_linear(uint64_t repeat, uint64_t head = 6, uint64_t slope = 2, uint64_t tail = 0)
{
    return estimate_linear(PipeKey::VECTOR, repeat, head, slope, tail);
}
inline uint64_t estimate_bandwidth(uint64_t bytes, PipeKey route)
{
    const auto &arch = CurrentArch();
    const double rate = arch.bandwidth[route] * double(evaluator::kBytesPerGb) / double(arch.frequency_hz);
    recorder.bytes = bytes;
    recorder.cycles = rate > 0 ? float(double(bytes) / rate) : 0;
    return EstimateBandwidthCycles(bytes, route);
}
} // namespace vclock
#define EstimateLinearCycles ::vclock::estimate_linear
#define _EstimateVconvCycles(repeat) ::vclock::estimate_linear(repeat, 14, 2, 18)
#define EstimateVconvCycles(repeat) ::vclock::estimate_linear(repeat, 14, 2, 18)
#define EstimateBandwidthCycles ::vclock::estimate_bandwidth

#define get_subblockid get_subblockid_of_cost_model
#include <pto/costmodel/common/runtime_util.hpp>
#undef get_subblockid
inline int get_subblockid() { return int(vclock::recorder.order.sub_block); }
inline constexpr event_t EVENT_ID1 = 1, EVENT_ID2 = 2, EVENT_ID3 = 3, EVENT_ID4 = 4, EVENT_ID5 = 5, EVENT_ID6 = 6, EVENT_ID7 = 7;

// Scalar access to on-chip and global memory, called from the instrumented source.
namespace vclock {
inline void scalar(const char *name) { record_sync(What::Scalar, name, 1, 0, 0, 0); }
template <class Tile> inline auto GetValue(Tile &tile, uint32_t offset)
{
    scalar("GetValue");
    return tile.GetValue(offset);
}
template <class Tile, class Value> inline void SetValue(Tile &tile, uint32_t offset, Value value)
{
    scalar("SetValue");
    tile.SetValue(offset, value);
}
template <class T> inline T &global(T *address)
{
    scalar("global");
    return *address;
}
} // namespace vclock

// The A5 form of cross-core flags: named here so that the templates compile; the clock refuses kernels that use it.
inline void set_intra_block(auto, auto) { vclock::scalar("set_intra_block"); }
inline void wait_intra_block(auto, auto) { vclock::scalar("wait_intra_block"); }

namespace cce {
inline void printf(...) {}
} // namespace cce

#include <pto/common/type.hpp>
#include <pto/common/kernel_meta.hpp>
#include "pto/costmodel/runtime_stub.hpp"
#include <pto/common/memory.hpp>
#include <pto/common/arch_macro.hpp>
#include <pto/common/pto_tile.hpp>
#include "pto/common/pto_instr_impl.hpp"
#include "operations.inc"
#include <pto/pto-inst.hpp>

// All cores of a kind meet (mode 0), cube and vector cores through one another (mode 2), as the device's SYNCALL does.
namespace pto {
template <SyncCoreType Cores = SyncCoreType::AIVOnly> inline void SYNCALL()
{
    constexpr int aic = 11, aiv = 12, both = 13, aiv_only = 14, mode_0 = 1, mode_2 = 1 | 2 << 4;
    pipe_barrier(PIPE_ALL);
    if (vclock::recorder.order.cube) {
        if constexpr (Cores == SyncCoreType::AIVOnly) return;
        if constexpr (Cores == SyncCoreType::Mix) wait_flag_dev(aiv);
        ffts_cross_core_sync(PIPE_FIX, mode_0 | aic << 8);
        wait_flag_dev(aic);
        if constexpr (Cores == SyncCoreType::Mix) ffts_cross_core_sync(PIPE_MTE3, mode_2 | both << 8);
    } else if constexpr (Cores == SyncCoreType::Mix) {
        ffts_cross_core_sync(PIPE_MTE3, mode_2 | aiv << 8);
        wait_flag_dev(both);
    } else if constexpr (Cores == SyncCoreType::AIVOnly) {
        ffts_cross_core_sync(PIPE_MTE3, mode_0 | aiv_only << 8);
        wait_flag_dev(aiv_only);
    }
}
} // namespace pto

#include <tl_templates/pto/common.h>
#ifdef VCLOCK_EITHER
#undef __DAV_CUBE__
#undef __DAV_C220_CUBE__
#endif

#define VCLOCK_LINE(number) ::vclock::recorder.line = number;
#define VCLOCK_EXPORT extern "C" __attribute__((visibility("default")))
