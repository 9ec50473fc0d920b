/** Chooses the format of a model's prompts: its chat template, or rules that engines apply instead. */

/** The rules by which prompts are rendered. `encoder`: the code that the model's authors publish. */
export type PromptFormat = 'template' | 'harmony' | 'encoder'

/** A prompt format, and the reason for choosing it. */
export interface PromptFormatChoice {
  readonly name: PromptFormat
  /** `name`: an option names the format. `files`: the model has a prompt encoder and no chat template. */
  readonly chosenBy: 'name' | 'template' | 'files'
  /** The texts in the template, or the file, that indicate the format. */
  readonly evidence: readonly string[]
}

/** The roles in which messages are rendered, because the template drops or rejects some roles. */
export interface PromptRoles {
  /** The role of developer messages. */
  readonly developer: 'developer' | 'system'
  /** The role of system messages after the beginning. */
  readonly later_system: 'system' | 'user'
}

/** Texts that together occur only in gpt-oss's template. */
const HARMONY_SIGNS = ['<|start|>assistant', '<|channel|>analysis', '<|channel|>commentary']

/** The names of the variables that harmony's rules use. */
export const HARMONY_VARIABLES = 'reasoning_effort model_identity builtin_tools'

/** The names of the variables that `python/model_encoder.py` converts to arguments of a prompt encoder. */
export const ENCODER_VARIABLES = 'thinking enable_thinking reasoning_effort drop_thinking thinking_effort'

/**
 * The function of a prompt encoder that the proxy calls. `encode_messages` returns a text (DeepSeek),
 * `build_chat_segments` returns segments (Kimi K3; see `segments.ts`).
 */
export type EncoderEntryPoint = 'encode_messages' | 'build_chat_segments'

/** Returns the entry point that the code of an encoder defines. */
export function findEntryPoint(source: string): EncoderEntryPoint {
  return /^def build_chat_segments\(/m.test(source) ? 'build_chat_segments' : 'encode_messages'
}

/**
 * Chooses the prompt format. For gpt-oss, `auto` chooses harmony's rules: vLLM applies them, too, and ignores the
 * model's template.
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
