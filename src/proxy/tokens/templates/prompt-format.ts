/** The format of a model's prompts: its chat template, or rules that engines use instead. */

/** The rules by which prompts are written. `encoder`: those of the code that the model's authors publish. */
export type PromptFormat = 'template' | 'harmony' | 'encoder'

export interface PromptFormatChoice {
  readonly name: PromptFormat
  /** `files`: the model has a prompt encoder and no chat template. */
  readonly chosenBy: 'name' | 'template' | 'files'
  /** Template texts, or the file, that indicate the format. */
  readonly evidence: readonly string[]
}

/** The roles that a template's messages are given in place of those that it drops or rejects. */
export interface PromptRoles {
  /** The role of developer messages. */
  readonly developer: 'developer' | 'system'
  /** The role of system messages after the beginning. */
  readonly later_system: 'system' | 'user'
}

/** Texts that only gpt-oss's template contains. */
const HARMONY_SIGNS = ['<|start|>assistant', '<|channel|>analysis', '<|channel|>commentary']

/** The names of the variables that harmony's rules use. */
export const HARMONY_VARIABLES = 'reasoning_effort model_identity builtin_tools'

/** The names of the variables that a prompt encoder is called with; see `python/model_encoder.py`. */
export const ENCODER_VARIABLES = 'thinking enable_thinking reasoning_effort drop_thinking thinking_effort'

/**
 * The function of a prompt encoder that writes prompts. `encode_messages` returns a text (DeepSeek), and
 * `build_chat_segments` segments (Kimi K3; see `segments.ts`).
 */
export type EncoderEntryPoint = 'encode_messages' | 'build_chat_segments'

/** Returns the function that writes prompts, by the encoder's code. */
export function findEntryPoint(source: string): EncoderEntryPoint {
  return /^def build_chat_segments\(/m.test(source) ? 'build_chat_segments' : 'encode_messages'
}

/**
 * Chooses the prompt format. vLLM writes the prompts of gpt-oss by harmony's rules and ignores the model's template; so
 * does `auto`.
 */
export function choosePromptFormat(
  requested: Exclude<PromptFormat, 'encoder'> | 'auto',
  templateSource: string,
): PromptFormatChoice {
  if (requested !== 'auto') return { name: requested, chosenBy: 'name', evidence: [] }
  const isHarmony = HARMONY_SIGNS.every((sign) => templateSource.includes(sign))
  return {
    name: isHarmony ? 'harmony' : 'template',
    chosenBy: 'template',
    evidence: isHarmony ? HARMONY_SIGNS : [],
  }
}
