"""BV-Blend's options and `bvblend_eb` on streams of training steps and in small policies that learn."""
