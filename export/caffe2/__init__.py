"""The Caffe2 source: a pair of serialized networks, one that fills blobs and one that computes with them."""
