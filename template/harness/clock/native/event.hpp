// One kind of event in the instruction stream of a core. Shared by the recorder (inside the traced kernel) and the
// scheduler (in the driver), so it holds plain data only.
#pragma once
#include <cstdint>

namespace vclock {

enum class What : uint8_t { Instruction, SetFlag, WaitFlag, Barrier, CrossSet, CrossWait, Scalar };

// What an instruction may consist of: of a flag to another core alone (TPUSH and TPOP of a tensor in global memory), but
// not of a flag between pipes alone.
inline bool is_cost(What what)
{
    return what == What::Instruction || what == What::CrossSet || what == What::CrossWait;
}

// The pipes of a core, with the numbers that the cost model gives them (it has no PIPE_FIX of its own: 7 here).
enum Pipe : uint8_t { S, V, MTE1, MTE2, MTE3, M, ALL, FIX, PIPES };

struct Event {
    const char *intrinsic;    // "vadd", "copy_gm_to_ubuf_align_b16", "set_flag", ...
    const char *instruction;  // enclosing PTO instruction ("TADD"), or nullptr
    uint32_t line;            // of the generated source
    float cycles;             // occupancy of the pipe, without head
    uint32_t bytes;           // moved by a transfer
    uint16_t head, tail;      // cycles before the first result of a cold pipe; cycles from last issue to last result
    What what;
    uint8_t route;            // cost model's PipeKey: which unit moves or computes
    int16_t a, b, c;          // flags: source pipe, target pipe, id; cross flags: pipe, message; barrier: pipe

    bool operator==(const Event &) const = default;
};

// What to trace.
struct Order {
    uint32_t block, sub_block, blocks;
    uint32_t cube;              // 1: the code of the cube core
    uint32_t vector_broadcast;  // 1: cost TROWEXPAND without the scalar round trip per row that the pto backend makes
    uint64_t limit;             // most events to record
};

// What one traced core hands over: `stream[i]` is an index into `kinds`. Valid until the thread's next trace.
struct Trace {
    const Event *kinds;
    uint64_t kind_count;
    const uint32_t *stream;
    uint64_t length;
    const char *silent;         // PTO instructions that recorded nothing, separated by blanks
    uint32_t overflow;          // 1: recording stopped at the limit
};

} // namespace vclock
