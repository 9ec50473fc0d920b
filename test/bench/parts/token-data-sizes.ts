/** Sizes of token data as in training: a mask of top_k 20, and the experts of Qwen3-30B-A3B. */
export const MASK_IDS = 20
export const ALTERNATIVES = 20
export const LAYERS = 48
export const EXPERTS_PER_TOKEN = 8
