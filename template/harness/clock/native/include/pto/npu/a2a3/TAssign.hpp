// Stands in for PTO-ISA's TASSIGN while tracing: an on-chip address becomes a place in an arena, so that scalar reads
// of tiles find memory (zeros) and every address can be traced back to its buffer.
#pragma once
#include <cstdint>
#include <cstdlib>

#include <pto/common/pto_tile.hpp>

namespace vclock {

inline constexpr uint64_t slot_bytes = 1u << 20;   // more than the largest on-chip memory

inline unsigned char *arena()
{
    // UB, L1, L0A, L0B, L0C, others; one more slot so that a wrong address near the end stays inside
    static thread_local unsigned char *base = static_cast<unsigned char *>(std::calloc(7, slot_bytes));
    return base;
}

inline constexpr uint64_t slot(pto::TileType kind)
{
    using pto::TileType;
    return kind == TileType::Vec ? 0 : kind == TileType::Mat ? 1 : kind == TileType::Left ? 2
           : kind == TileType::Right ? 3 : kind == TileType::Acc ? 4 : 5;
}

} // namespace vclock

namespace pto {

template <typename T, typename Address> PTO_INTERNAL void TASSIGN_IMPL(T &object, Address address)
{
    if constexpr (is_tile_data_v<T> || is_conv_tile_v<T>) {
        const uint64_t offset = uint64_t(address) % vclock::slot_bytes;
        object.assignData(reinterpret_cast<typename T::TileDType>(vclock::arena() + vclock::slot(T::Loc) * vclock::slot_bytes + offset));
    } else {
        object.SetAddr(address);
    }
}

} // namespace pto
