"""The model of output lengths: what training has shown, corrected online by what answers turn out to be."""
