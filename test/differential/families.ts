/** Published templates of model families, from llama-cpp-python's source distribution. */

export interface Family {
  /** File name without `.jinja`. */
  template: string
  /** Tokens that end a completion, the tokenizer's own first. */
  eos: readonly [string, ...string[]]
  bos?: string
  /** Text for the `{}` in the template's tokens. */
  fill?: string
  /** The renderer of the prompts. Default: the template. */
  format?: 'harmony'
  /**
   * The template moves content next to tool calls behind their results, where it was not sampled. The added tokens then
   * follow the tool calls without it.
   */
  movesText?: true
  /** The conversations have no tools, because the template supports none. */
  withoutTools?: true
}

const im = ['<|im_end|>', '<|endoftext|>'] as const

export const FAMILIES: Readonly<Record<string, Family>> = {
  'Qwen2.5': { template: 'Qwen-Qwen2.5-7B-Instruct', eos: im },
  Qwen3: { template: 'Qwen-Qwen3-0.6B', eos: im },
  'Qwen3-Coder': { template: 'Qwen3-Coder', eos: im },
  'Qwen3.5': { template: 'Qwen3.5-4B', eos: im },
  QwQ: { template: 'Qwen-QwQ-32B', eos: im },
  'DeepSeek R1': { template: 'llama-cpp-deepseek-r1', eos: ['<｜end▁of▁sentence｜>'] },
  'R1-Distill-Llama': {
    template: 'deepseek-ai-DeepSeek-R1-Distill-Llama-8B',
    eos: ['<｜end▁of▁sentence｜>'],
  },
  'R1-Distill-Qwen': { template: 'deepseek-ai-DeepSeek-R1-Distill-Qwen-32B', eos: ['<｜end▁of▁sentence｜>'] },
  'DeepSeek V3.1': { template: 'deepseek-ai-DeepSeek-V3.1', eos: ['<｜end▁of▁sentence｜>'] },
  'DeepSeek V3.2': { template: 'deepseek-ai-DeepSeek-V3.2', eos: ['<｜end▁of▁sentence｜>'] },
  'gpt-oss': { template: 'openai-gpt-oss-120b', eos: ['<|return|>', '<|call|>'] },
  'gpt-oss by harmony': {
    template: 'openai-gpt-oss-120b',
    eos: ['<|return|>', '<|call|>'],
    format: 'harmony',
  },
  'Llama 3.1': { template: 'meta-llama-Llama-3.1-8B-Instruct', eos: ['<|eot_id|>', '<|eom_id|>'] },
  'Llama 3.2': { template: 'meta-llama-Llama-3.2-3B-Instruct', eos: ['<|eot_id|>', '<|eom_id|>'] },
  'Llama 3.3': { template: 'meta-llama-Llama-3.3-70B-Instruct', eos: ['<|eot_id|>', '<|eom_id|>'] },
  'Hermes 2 Pro': { template: 'NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use', eos: im },
  'Hermes 3': { template: 'NousResearch-Hermes-3-Llama-3.1-8B-tool_use', eos: im },
  'Mistral Nemo': { template: 'mistralai-Mistral-Nemo-Instruct-2407', eos: ['</s>'], bos: '<s>' },
  'Mistral Small 3.2': { template: 'Mistral-Small-3.2-24B-Instruct-2506', eos: ['</s>'], bos: '<s>' },
  Devstral: { template: 'unsloth-mistral-Devstral-Small-2507', eos: ['</s>'], bos: '<s>' },
  'Ministral 3': { template: 'mistralai-Ministral-3-14B-Reasoning-2512', eos: ['</s>'], bos: '<s>' },
  'Phi 3.5': { template: 'microsoft-Phi-3.5-mini-instruct', eos: ['<|endoftext|>', '<|end|>'] },
  'Granite 3.3': { template: 'ibm-granite-granite-3.3-2B-Instruct', eos: ['<|end_of_text|>'] },
  'Granite 4': { template: 'ibm-granite-granite-4.0', eos: ['<|end_of_text|>'] },
  'GLM 4.6': { template: 'GLM-4.6', eos: ['<|endoftext|>', '<|user|>', '<|observation|>'] },
  'GLM 4.7': { template: 'GLM-4.7-Flash', eos: ['<|endoftext|>', '<|user|>', '<|observation|>'] },
  'Kimi K2': { template: 'Kimi-K2-Instruct', eos: ['<|im_end|>'] },
  'Kimi K2 Thinking': { template: 'Kimi-K2-Thinking', eos: ['<|im_end|>'] },
  'MiniMax M2': { template: 'MiniMax-M2', eos: ['[e~['] },
  'Nemotron 3': { template: 'NVIDIA-Nemotron-3-Nano-30B-A3B-BF16', eos: ['<|im_end|>'] },
  'Nemotron Nano 2': { template: 'NVIDIA-Nemotron-Nano-v2', eos: ['<SPECIAL_12>'] },
  'Ling 3': { template: 'inclusionai-ling-3.0-flash', eos: ['<|role_end|>'] },
  SmolLM3: { template: 'HuggingFaceTB-SmolLM3-3B', eos: ['<|im_end|>'] },
  'Seed-OSS': { template: 'ByteDance-Seed-OSS', eos: ['<seed:eos>'], bos: '<seed:bos>' },
  'Hunyuan 3': { template: 'tencent-Hy3', eos: ['<｜hy_eos:opensource｜>'], fill: ':opensource' },
  'Step 3.5': { template: 'StepFun3.5-Flash', eos: ['<|im_end|>'] },
  'Command R7B': {
    template: 'CohereForAI-c4ai-command-r7b-12-2024-tool_use',
    eos: ['<|END_OF_TURN_TOKEN|>'],
  },
  'Gemma 2': { template: 'google-gemma-2-2b-it', eos: ['<eos>', '<end_of_turn>'], withoutTools: true },
  LFM2: { template: 'LFM2-8B-A1B', eos: ['<|im_end|>'] },
  MiMo: { template: 'MiMo-VL', eos: im },
  Apertus: { template: 'Apertus-8B-Instruct', eos: ['<|assistant_end|>', '<|tools_suffix|>'] },
  Bielik: { template: 'Bielik-11B-v3.0-Instruct', eos: im },
  'Command A': { template: 'Cohere2MoE', eos: ['<|END_OF_TURN_TOKEN|>'] },
  'Command R+': {
    template: 'CohereForAI-c4ai-command-r-plus-tool_use',
    eos: ['<|END_OF_TURN_TOKEN|>'],
    bos: '<BOS_TOKEN>',
  },
  'GigaChat 3': { template: 'GigaChat3-10B-A1.8B', eos: ['<|message_sep|>'] },
  'GigaChat 3.1': { template: 'GigaChat3.1-10B-A1.8B', eos: ['<|message_sep|>'] },
  'Kimi K2 first': { template: 'moonshotai-Kimi-K2', eos: ['<|im_end|>'] },
  'Kimi K3': { template: 'Kimi-K3', eos: ['<|end_of_msg|>'] },
  'LFM2.5': { template: 'LFM2.5-8B-A1B', eos: ['<|im_end|>'] },
  'LFM2.5 Instruct': { template: 'LFM2.5-Instruct', eos: ['<|im_end|>'] },
  'MiniMax M1': { template: 'MiniMax-M1', eos: ['<end_of_sentence>'] },
  'MiniMax M3': { template: 'MiniMax-M3', eos: ['[e~['], bos: ']~!b[' },
  'Reka Edge': { template: 'Reka-Edge', eos: ['<sep>'] },
  Spark: { template: 'Spark2.5', eos: ['<｜end▁of▁sentence｜>'] },
  'DeepSeek V4': { template: 'deepseek-ai-DeepSeek-V4', eos: ['<｜end▁of▁sentence｜>'] },
  'DeepSeek V4 Flash': { template: 'deepseek-ai-DeepSeek-V4-Flash-0731', eos: ['<｜end▁of▁sentence｜>'] },
  'Gemma 4': { template: 'google-gemma-4-31B-it', eos: ['<turn|>', '<eos>'], movesText: true },
  'Gemma 4 interleaved': {
    template: 'google-gemma-4-31B-it-interleaved',
    eos: ['<turn|>', '<eos>'],
    movesText: true,
  },
  'Granite 4.1': { template: 'ibm-granite-granite-4.1', eos: ['<|end_of_text|>'] },
  'Functionary 3.1': {
    template: 'meetkai-functionary-medium-v3.1',
    eos: ['<|eot_id|>', '<|eom_id|>'],
    bos: '<|begin_of_text|>',
  },
  'Functionary 3.2': {
    template: 'meetkai-functionary-medium-v3.2',
    eos: ['<|eot_id|>'],
    bos: '<|begin_of_text|>',
  },
  'Muse Glimmer': { template: 'muse-glimmer', eos: ['<|eot|>', '<|eom|>'] },
  MiniCPM5: { template: 'openbmb-MiniCPM5-1B', eos: ['<|im_end|>'] },
  'Laguna S 2.1': { template: 'poolside-Laguna-S-2.1', eos: ['</assistant>'] },
  'Laguna XS 2.1': { template: 'poolside-Laguna-XS-2.1', eos: ['</assistant>'] },
  'Laguna XS': { template: 'poolside-Laguna-XS.2', eos: ['</assistant>'] },
  'Apriel 1.5': { template: 'unsloth-Apriel-1.5', eos: ['<|end|>'] },
  'Apriel 1.6': { template: 'Apriel-1.6-15b-Thinker-fixed', eos: ['<|end|>'] },
  'Solar Open': { template: 'upstage-Solar-Open-100B', eos: ['<|end|>'] },
}
