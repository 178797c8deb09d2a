"""What every room speaks: errors, the model's specification, boxes, structures, timings and durable files."""
