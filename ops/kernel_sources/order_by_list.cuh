// OrderByList: the found slots of each picture list by list, within a list by ascending `within` and then by rank. A slot's place is the
// number of those that come before it, so each place has one writer.

DEVICE bool comes_before(const Arguments& k, Index image, int rank, int other_rank) {
  const int* slots = k.slots + image * k.rows;
  const int slot = slots[rank], other = slots[other_rank], list = slot / k.entries, other_list = other / k.entries;
  if (list != other_list) return list < other_list;
  const int* within = k.within + image * k.lists * k.entries;
  return within[slot] != within[other] ? within[slot] < within[other] : rank < other_rank;
}

DEVICE void order_slot(const Arguments& k, Index item) {
  const Index image = item / k.rows;
  const int rank = (int)(item % k.rows), found = least(k.found[image], k.rows);
  int place = rank;
  if (rank < found) {
    place = 0;
    for (int other = 0; other < found; ++other) place += other != rank && comes_before(k, image, other, rank);
  }
  k.ordered[image * k.rows + place] = rank < found ? k.slots[item] : -1;
}
