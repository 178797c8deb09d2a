// RankKept: what NMS keeps in all lists of a picture, by descending score over the lists. Every kept candidate finds its own rank: how
// many of each list score more (the lists are sorted), and which of the equal ones come first. Places of a picture's lists are slots.

// What one picture has: rows, scores and tie values of its lists, one after the other, and how many rows each list keeps.
struct Picture {
  const int* kept;
  const int* counts;
  const float* scores;
  const int* ties;
};

struct Rank {
  int better, equal, before;  // that score more; that score as much, itself too; those of them that come first
};

// How many rows of a list, which starts at slot `first`, score more than `score`.
DEVICE int count_better(const Picture& picture, int first, int count, float score) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    const bool better = picture.scores[first + picture.kept[first + middle]] > score;
    low = better ? middle + 1 : low;
    high = better ? high : middle;
  }
  return low;
}

// The rank of a slot; it is not counted to the end once it is beyond the rows wanted. Of equal scores the lower tie value comes first,
// then the lower slot: the earlier list, and in a list what was visited first.
DEVICE Rank rank_of(const Arguments& k, const Picture& picture, int slot) {
  const float score = picture.scores[slot];
  const int tie = picture.ties[slot];
  Rank rank = {0, 0, 0};
  for (int list = 0, first = 0; list < k.lists && rank.better + rank.before < k.rows; ++list, first += k.entries) {
    const int count = picture.counts[list];
    int place = count_better(picture, first, count, score);
    rank.better += place;
    for (; place < count; ++place) {
      const int other = first + picture.kept[first + place];
      if (picture.scores[other] != score) break;
      const int other_tie = picture.ties[other];
      rank.before += other_tie < tie || (other_tie == tie && other < slot);
      ++rank.equal;
    }
  }
  return rank;
}

// Writes what no kept row writes: the padding, and `found` where no row at the limit decides about it.
DEVICE void write_rest(const Arguments& k, const Picture& picture, int image, int at) {
  int total = 0;
  for (int list = 0; list < k.lists; ++list) total += picture.counts[list];
  const bool limited = k.limit > 0 && total >= k.limit;
  if (at == 0 && !(limited && k.keep_ties)) k.found[image] = limited ? k.limit : total;
  if (at < k.rows && at >= total) k.slots[image * k.rows + at] = -1;
}

// Items are the places of all kept rows, at least one a picture. Those that hold a row write its slot where it ranks. Where equal
// scores stay, the row at the limit writes `found`.
DEVICE void rank_kept(const Arguments& k, Index item) {
  const int places = most(k.lists * k.entries, 1), image = (int)item / places, at = (int)item % places;
  const int first = image * k.lists * k.entries;
  const Picture picture = {k.kept + first, k.kept_count + image * k.lists, k.scores + first, k.ties + first};
  if (at == 0 || at < k.rows) write_rest(k, picture, image, at);
  if (k.entries == 0 || at % k.entries >= picture.counts[at / k.entries]) return;
  const int slot = at - at % k.entries + picture.kept[at];
  const Rank rank = rank_of(k, picture, slot);
  const int place = rank.better + rank.before;
  if (place < k.rows) k.slots[image * k.rows + place] = slot;
  if (k.keep_ties && place == k.limit - 1) k.found[image] = rank.better + rank.equal;
}
