"""How much ddpdoctor costs, measured on real ranks. Prints figures and asserts none of them."""
