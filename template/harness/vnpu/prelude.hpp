// Pre-included before a generated kernel: turns the installed PTO-ISA headers into the instruction set of a simulated
// core. Supplies what their CPU mode leaves out (cross-core flags, event ids, a true bf16) and replaces the
// instructions whose CPU version departs from the device (instructions.hpp, matmul.hpp).
#pragma once
#define NDEBUG  // the headers' assertions refuse what the device computes, such as a division by zero
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "core.hpp"

#define __CPU_SIM 1
#ifdef VNPU_A5
#define __CCE_AICORE__ 310
#else
#define __CCE_AICORE__ 220
#endif
using half = _Float16;

// The CPU mode aliases bfloat16_t to _Float16, which is wrong in silence: read its types under another name.
#define bfloat16_t pto_bfloat16_placeholder
#include <pto/common/type.hpp>
#undef bfloat16_t
using bfloat16_t = __bf16;

// Conversions that the compiler calls and older runtime libraries lack. To nearest even; NaN stays NaN; double goes
// through a float rounded to odd, which rounds once in effect.
namespace vnpu {
inline float round_to_odd(double value) {
    float near = static_cast<float>(value);
    if (near == value || std::isnan(value)) return near;
    uint32_t bits = std::bit_cast<uint32_t>(near);
    return std::bit_cast<float>((std::fabs(near) > std::fabs(value) ? bits - 1 : bits) | 1);
}
}  // namespace vnpu
extern "C" __attribute__((weak, used)) __bf16 __truncsfbf2(float value) {
    uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        bits |= 0x00400000;
    else
        bits += 0x7fff + ((bits >> 16) & 1);
    return std::bit_cast<__bf16>(static_cast<uint16_t>(bits >> 16));
}
extern "C" __attribute__((weak, used)) __bf16 __truncdfbf2(double value) {
    return __truncsfbf2(vnpu::round_to_odd(value));
}
#ifdef __F16C__  // else the plain conversion needs the library as well, and it has this one too
extern "C" __attribute__((weak, used)) _Float16 __truncdfhf2(double value) {
    return static_cast<_Float16>(vnpu::round_to_odd(value));
}
#endif

// The headers take padding values and limits from numeric_limits, which the standard library leaves empty (all zero)
// for the 16-bit floats.
#ifndef __STDCPP_FLOAT16_T__
namespace vnpu {
template <typename T, uint16_t Largest, uint16_t Infinity, uint16_t Tiny> struct limits16 : std::numeric_limits<float> {
    static constexpr T of(uint16_t bits) {
        return std::bit_cast<T>(bits);
    }
    static constexpr T max() {
        return of(Largest);
    }
    static constexpr T lowest() {
        return of(Largest | 0x8000);
    }
    static constexpr T min() {
        return of(Tiny);
    }
    static constexpr T infinity() {
        return of(Infinity);
    }
    static constexpr T quiet_NaN() {
        return of(Infinity | 0x7fff);
    }
};
}  // namespace vnpu
template <> struct std::numeric_limits<_Float16> : vnpu::limits16<_Float16, 0x7bff, 0x7c00, 0x0400> {};
template <> struct std::numeric_limits<__bf16> : vnpu::limits16<__bf16, 0x7f7f, 0x7f80, 0x0080> {};
#endif

namespace vnpu {
inline const Host *host = nullptr;
inline thread_local Core *core __attribute__((tls_model("initial-exec"))) = nullptr;
}  // namespace vnpu

// Put before every statement of the kernel by the builder, so that reports can name it.
#define VNPU_LINE(number) (::vnpu::core->line = (number));

// Names that the CPU mode does not declare.
enum { EVENT_ID1 = 1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };
#define __biasbuf__
#define CATLASS_GLOBAL

inline void set_ffts_base_addr(uint64_t) {}
inline uint32_t get_block_num() {
    return vnpu::host->block_count;
}

// Cross-core flags. The pipe only delays the signal on the device; here instructions are complete in program order.
inline void ffts_cross_core_sync(int, int config) {
    vnpu::host->cross_set(vnpu::core, (config >> 4) & 3, (config >> 8) & 15);
}
inline void wait_flag_dev(int flag) {
    vnpu::host->cross_wait(vnpu::core, flag);
}
template <typename Pipe, typename Flag> inline void set_intra_block(Pipe, Flag flag) {
    vnpu::host->cross_set(vnpu::core, 3, static_cast<int32_t>(flag));
}
template <typename Pipe, typename Flag> inline void wait_intra_block(Pipe, Flag flag) {
    vnpu::host->cross_wait(vnpu::core, static_cast<int32_t>(flag));
}

// cce::printf: format strings are the kernel's own.
namespace cce {
template <typename... Values> inline void printf(const char *format, Values... values) {
    std::printf(format, values...);
}
}  // namespace cce

#include <pto/common/kernel_meta.hpp>

#include "pto/common/cpu_stub.hpp"
#include <pto/common/memory.hpp>
#include <pto/common/arch_macro.hpp>
#include <pto/common/pto_tile.hpp>
#include "pto/common/debug.h"
#include "pto/common/event.hpp"
// Headers that define what is replaced below; the front end includes the others.
#include "pto/cpu/TSync.hpp"
#include "pto/cpu/ElementTileOp.h"
#include "pto/cpu/TMatmul.hpp"
#include "pto/cpu/TAssign.hpp"
#include "pto/cpu/TLoad.hpp"
#include "pto/cpu/TStore.hpp"
#include "pto/cpu/TFillPad.hpp"
#include "pto/cpu/TSelS.hpp"
#include "pto/cpu/TSel.hpp"
#include "pto/cpu/TCmps.hpp"
#include "pto/cpu/TCvt.hpp"
#include "pto/cpu/TSort32.hpp"
#include "pto/cpu/TPrint.hpp"
#include "pto/cpu/TRowSum.hpp"

#include "instructions.hpp"
#include "matmul.hpp"

// The front end reaches the implementations through these names.
#define TASSIGN_IMPL ::vnpu::assign
#define TLOAD_IMPL ::vnpu::load
#define TSTORE_IMPL ::vnpu::store
#define TCVT_IMPL ::vnpu::convert
#define TFILLPAD_IMPL ::vnpu::fill_pad
#define TFILLPAD_INPLACE_IMPL ::vnpu::fill_pad_inplace
#define TCMP_IMPL ::vnpu::compare
#define TCMPS_IMPL ::vnpu::compare
#define TSEL_IMPL ::vnpu::select
#define TSELS_IMPL ::vnpu::select
#define TMATMUL_IMPL ::vnpu::matmul
#define TMATMUL_ACC_IMPL ::vnpu::matmul_accumulate
#define TSORT32_IMPL ::vnpu::sort32
#define TPRINT_IMPL ::vnpu::print_tile
#define TROWSUM_IMPL ::vnpu::row_sum
#define SYNCALL_IMPL ::vnpu::sync_all
#include <pto/pto-inst.hpp>

#include <tl_templates/pto/common.h>
#if __has_include(<tl_templates/pto/printf.h>)
#include <tl_templates/pto/printf.h>
#endif

// int64_t on the device, uint32_t in the CPU mode: generated code subtracts from them and compares with negative
// numbers.
#define get_block_idx() static_cast<int64_t>(get_block_idx())
#define get_subblockid() static_cast<int64_t>(get_subblockid())

// What the driver finds in the library; the builder appends the functions.
#define VNPU_EXPORT extern "C" __attribute__((visibility("default")))
