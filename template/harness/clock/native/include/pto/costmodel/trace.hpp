// Stands in for PTO-ISA's <pto/costmodel/trace.hpp>, with the same interface. The original sums cycles per PTO
// instruction and drops what lies outside of one; this one keeps a single ordered stream per core, synchronisation
// included, which is what a scheduler needs.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include <pto/costmodel/arch_config.hpp>

#include "event.hpp"

namespace vclock {

using pto::mocker::evaluator::PipeKey;

// Figures of a newer PTO-ISA than some compilers bring (head, slope, tail; `floor`: extra cycles in count mode).
struct Figure {
    std::string_view intrinsic;
    uint8_t head, slope, tail, floor;
    std::string_view instruction = {};   // only inside of it
};
inline constexpr Figure figures[] = {
#include "figures.inc"
};

struct Overflow {};   // thrown out of the kernel when the stream has reached its limit

class Recorder {
public:
    Order order{};
    uint32_t line = 0;
    const char *instruction = nullptr;
    int depth = 0;
    bool count_mode = false;
    uint64_t count = 0;                                    // elements per instruction in count mode
    uint64_t head = 0, slope = 0, repeat = 0, bytes = 0;   // left by the estimators for the call that follows
    float cycles = 0;
    bool linear = false;
    uint16_t tail = 0;
    std::vector<Event> kinds;
    std::vector<uint32_t> stream;
    std::unordered_map<const char *, uint64_t> used;       // PTO instruction -> costs recorded inside

    void begin(const Order &what)
    {
        *this = Recorder{};
        order = what;
        table.assign(1u << 12, 0);
    }

    __attribute__((noinline)) void push(const Event &event)
    {
        if (stream.size() >= order.limit) throw Overflow{};
        if (instruction && is_cost(event.what)) ++*current;
        if (order.vector_broadcast && instruction && std::string_view(instruction) == "TROWEXPAND" &&
            (event.what == What::SetFlag || event.what == What::WaitFlag))
            return;
        stream.push_back(intern(event));
    }

    void finish(Trace *out, bool overflow = false)
    {
        // What is free on the device too records nothing and is no gap in the model.
        constexpr std::string_view free[] = {"TASSIGN", "TRESHAPE", "TSUBVIEW", "TALIAS", "TSYNC", "TPRINT", "TGET_SCALE_ADDR"};
        silent.clear();
        for (const auto &[name, events] : used)
            if (!events && std::find(std::begin(free), std::end(free), name) == std::end(free)) silent += std::string(name) + ' ';
        *out = {kinds.data(), kinds.size(), stream.data(), stream.size(), silent.c_str(), overflow ? 1u : 0u};
    }

    void enter(const char *name)
    {
        if (depth++ == 0) {
            instruction = name;
            current = &used[name];
        }
    }

    void leave()
    {
        if (--depth == 0) instruction = nullptr;
    }

private:
    std::vector<uint32_t> table;   // open addressing, kind index + 1
    uint64_t *current = nullptr;
    std::string silent;

    static uint64_t mix(uint64_t h, uint64_t v)
    {
        h = (h ^ v) * 0x9E3779B97F4A7C15ull;
        return h ^ (h >> 29);
    }

    uint32_t intern(const Event &e)
    {
        uint64_t h = mix(reinterpret_cast<uintptr_t>(e.intrinsic), reinterpret_cast<uintptr_t>(e.instruction));
        h = mix(h, uint64_t(e.line) << 32 | std::bit_cast<uint32_t>(e.cycles));
        h = mix(h, uint64_t(e.bytes) << 32 | uint32_t(e.head) << 16 | e.tail);
        h = mix(h, uint64_t(uint16_t(e.a)) << 48 | uint64_t(uint16_t(e.b)) << 32 | uint64_t(uint16_t(e.c)) << 16 |
                       uint64_t(e.what) << 8 | e.route);
        for (size_t mask = table.size() - 1, i = h & mask;; i = (i + 1) & mask) {
            if (!table[i]) {
                kinds.push_back(e);
                table[i] = uint32_t(kinds.size());
                if (kinds.size() * 2 > table.size()) rehash();
                return uint32_t(kinds.size() - 1);
            }
            if (kinds[table[i] - 1] == e) return table[i] - 1;
        }
    }

    void rehash()
    {
        std::vector<Event> old;
        old.swap(kinds);
        table.assign(table.size() * 4, 0);
        for (const Event &e : old) intern(e);
    }
};

inline thread_local Recorder recorder;

template <class T> inline uint64_t number(T value)
{
    if constexpr (std::is_pointer_v<T>) return uint64_t(reinterpret_cast<uintptr_t>(value));
    else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) return uint64_t(int64_t(value));
    else return 0;
}

// Bytes of the widest element among the pointer arguments: a vector instruction handles 256 bytes of it per repeat.
template <class T> inline constexpr uint64_t element_size()
{
    if constexpr (std::is_pointer_v<T>) {
        using Element = std::remove_cv_t<std::remove_pointer_t<T>>;
        if constexpr (!std::is_void_v<Element>) return sizeof(Element);
    }
    return 0;
}

// Out of line: the templates below would otherwise fill the kernel with copies of it.
__attribute__((noinline)) inline void record_sync(What what, const char *name, uint64_t cycles, uint64_t a, uint64_t b, uint64_t c)
{
    Event e{};
    e.intrinsic = name;
    e.instruction = recorder.instruction;
    e.line = recorder.line;
    e.cycles = float(cycles);
    e.what = what;
    e.route = uint8_t(PipeKey::COUNT);
    e.a = int16_t(a);
    e.b = int16_t(b);
    e.c = int16_t(c);
    recorder.push(e);
}

__attribute__((noinline)) inline void record(PipeKey route, std::string_view name, uint64_t cycles, uint64_t width)
{
    Recorder &r = recorder;
    Event e{};
    e.intrinsic = name.data();
    e.instruction = r.instruction;
    e.line = r.line;
    e.cycles = r.bytes ? r.cycles : float(cycles);   // the estimator's own, before it was cut to an integer
    e.what = What::Instruction;
    e.route = uint8_t(route);
    e.bytes = uint32_t(r.bytes);
    if (r.linear) {
        uint64_t head = r.head, slope = r.slope, tail = r.tail, repeat = r.repeat, extra = 0;
        for (const Figure &f : figures)
            if (f.intrinsic == name && (f.instruction.empty() || (r.instruction && f.instruction == r.instruction))) {
                head = f.head, slope = f.slope, tail = f.tail;
                if (r.count_mode) extra = f.floor;
            }
        if (route == PipeKey::VECTOR && r.count_mode) repeat = (r.count * (width ? width : 4) + 255) / 256;
        e.cycles = float(slope * repeat + extra);
        e.head = uint16_t(head);
        e.tail = uint16_t(tail);
    }
    r.linear = false;
    r.bytes = 0;
    r.push(e);
}

__attribute__((noinline)) inline void record_other(std::string_view name, uint64_t cycles, uint64_t a, uint64_t b, uint64_t c)
{
    const What what = name == "set_flag"               ? What::SetFlag
                      : name == "wait_flag"            ? What::WaitFlag
                      : name == "pipe_barrier"         ? What::Barrier
                      : name == "ffts_cross_core_sync" ? What::CrossSet
                      : name == "wait_flag_dev"        ? What::CrossWait
                                                       : What::Scalar;
    if (what != What::Scalar) return record_sync(what, name.data(), cycles, a, b, c);
    if (name == "set_mask_count") recorder.count_mode = true;
    else if (name == "set_mask_norm") recorder.count_mode = false;
    else if (name == "set_vector_mask") recorder.count = b;
    record_sync(what, name.data(), cycles, 0, 0, 0);
}

} // namespace vclock

namespace pto::mocker {

using Arg = uint64_t;
using evaluator::PipeKey;

inline bool IsPipeQueueEmpty(PipeKey) { return false; }   // the head of a cold pipe is the scheduler's business
inline void SetLastCceTail(PipeKey, uint64_t tail) { vclock::recorder.tail = uint16_t(tail); }
inline void FlushPendingTail(PipeKey) {}
inline void FlushAllPendingTails() {}
inline bool IsVectorCountMode() { return false; }         // the floor comes from the table of figures

template <class... Args> inline void RecordCceCall(PipeKey route, std::string_view name, uint64_t cycles, Args &&...)
{
    vclock::record(route, name, cycles, std::max({uint64_t(0), vclock::element_size<std::decay_t<Args>>()...}));
}

template <class... Args> inline void RecordCceCall(std::string_view name, uint64_t cycles, Args &&...args)
{
    const uint64_t values[] = {vclock::number(args)..., 0, 0, 0};
    vclock::record_other(name, cycles, values[0], values[1], values[2]);
}

inline uint64_t GetLastPtoInstrCycles() { return 0; }

// The little that <pto/costmodel/pto_instr.hpp> asks of the original's trace state.
struct PtoInstrRecord {
    uint64_t total_cycles = 0;
};
struct TraceState {
    std::vector<PtoInstrRecord> executed_pto{1};
    std::vector<std::size_t> active_pto_stack;
};
inline thread_local TraceState g_trace_state;
inline TraceState &GetMutableTrace() { return g_trace_state; }

class PtoInstrScope {
public:
    explicit PtoInstrScope(std::string_view name) { vclock::recorder.enter(name.data()); }
    ~PtoInstrScope() { Finish(); }
    void Finish()
    {
        if (!finished) vclock::recorder.leave();
        finished = true;
    }
    PtoInstrScope(const PtoInstrScope &) = delete;
    PtoInstrScope &operator=(const PtoInstrScope &) = delete;

private:
    bool finished = false;
};

} // namespace pto::mocker
