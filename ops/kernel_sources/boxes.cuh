// Boxes: reading, decoding, clipping. The order of operations is that of `ops/box_coding.py` and `core/boxes.py`, number by number.
struct Box {
  float x1, y1, x2, y2;
};

struct Deltas {
  float x, y, width, height;
};

// How deltas become boxes; see `ops/box_coding.py`.
struct BoxCoding {
  float size_offset, corner_offset, delta_clip;
};

DEVICE Box load_box(const float* from) {
  const Box box = {from[0], from[1], from[2], from[3]};
  return box;
}

DEVICE void store_box(float* target, const Box& box) {
  target[0] = box.x1;
  target[1] = box.y1;
  target[2] = box.x2;
  target[3] = box.y2;
}

DEVICE Box empty_box() {
  const Box box = {0.0f, 0.0f, 0.0f, 0.0f};
  return box;
}

// The score of padding, and of what is no candidate.
DEVICE float no_score() { return float_of_bits(0xff800000u); }

// The larger and the smaller of two numbers; what is not a number stays so, as in numpy.
DEVICE float larger(float first, float second) { return first >= second || first != first ? first : second; }

DEVICE float smaller(float first, float second) { return first <= second || first != first ? first : second; }

DEVICE Box divide_box(const Box& box, float by) {
  const Box scaled = {box.x1 / by, box.y1 / by, box.x2 / by, box.y2 / by};
  return scaled;
}

DEVICE Box stretch_box(const Box& box, float across, float down) {
  const Box scaled = {box.x1 * across, box.y1 * down, box.x2 * across, box.y2 * down};
  return scaled;
}

// Decodes one axis: corners `low` and `high`, what the centre moves by and the side grows by.
DEVICE void decode_side(float& low, float& high, float shift, float growth, const BoxCoding& coding) {
  const float size = high - low + coding.size_offset;
  const float centre = low + 0.5f * size;
  const float moved = shift * size + centre;
  const float half = 0.5f * (expf(smaller(growth, coding.delta_clip)) * size);
  low = moved - half;
  high = moved + half - coding.corner_offset;
}

DEVICE Box decode_box(Box box, const Deltas& deltas, const BoxCoding& coding) {
  decode_side(box.x1, box.x2, deltas.x, deltas.width, coding);
  decode_side(box.y1, box.y2, deltas.y, deltas.height, coding);
  return box;
}

DEVICE Box clip_box(const Box& box, float height, float width, float plus_one) {
  const float right = width - plus_one, bottom = height - plus_one;
  const Box clipped = {larger(smaller(box.x1, right), 0.0f), larger(smaller(box.y1, bottom), 0.0f),
                       larger(smaller(box.x2, right), 0.0f), larger(smaller(box.y2, bottom), 0.0f)};
  return clipped;
}

// An anchor of the first cell, moved to cell (y, x) of a map with a stride of (down, across) pixels.
DEVICE Box place_anchor(const float* anchor, int y, int x, const float* stride) {
  const float down = (float)y * stride[0], across = (float)x * stride[1];
  const Box placed = {across + anchor[0], down + anchor[1], across + anchor[2], down + anchor[3]};
  return placed;
}

// Deltas at a cell of maps with one plane of `cells` a coordinate.
DEVICE Deltas load_deltas(const float* planes, Index cells, Index cell) {
  const Deltas deltas = {planes[cell], planes[cells + cell], planes[2 * cells + cell], planes[3 * cells + cell]};
  return deltas;
}
