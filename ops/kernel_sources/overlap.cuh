// Whether one box suppresses another; the order of operations is that of `ops/suppression.py`.
#include "kernel_sources/boxes.cuh"

struct OverlapRule {
  float threshold, plus_one;
  int inclusive, one_empty_box;
};

DEVICE float area_of(const Box& box, float plus_one) {
  return (box.x2 - box.x1 + plus_one) * (box.y2 - box.y1 + plus_one);
}

DEVICE bool suppresses(const Box& best, const Box& other, const OverlapRule& rule) {
  const float width = larger(smaller(best.x2, other.x2) - larger(best.x1, other.x1) + rule.plus_one, 0.0f);
  const float height = larger(smaller(best.y2, other.y2) - larger(best.y1, other.y1) + rule.plus_one, 0.0f);
  const float shared = width * height;
  const float overlap = shared / (area_of(best, rule.plus_one) + area_of(other, rule.plus_one) - shared);
  if (overlap != overlap) return rule.one_empty_box != 0;
  return rule.inclusive ? overlap >= rule.threshold : overlap > rule.threshold;
}
