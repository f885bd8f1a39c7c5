"""Raw pages to blended tokens, as MT-NLG's corpus was made (Smith et al. 2022, section 2)."""
