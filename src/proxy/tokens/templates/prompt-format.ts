/** The format of a model's prompts: its chat template, or rules that engines use instead. */

/** The rules by which prompts are written. */
export type PromptFormat = 'template' | 'harmony'

export interface PromptFormatChoice {
  readonly name: PromptFormat
  readonly chosenBy: 'name' | 'template'
  /** Template texts that indicate the format. */
  readonly evidence: readonly string[]
}

/** Texts that only gpt-oss's template contains. */
const HARMONY_SIGNS = ['<|start|>assistant', '<|channel|>analysis', '<|channel|>commentary']

/** The names of the variables that harmony's rules use. */
export const HARMONY_VARIABLES = 'reasoning_effort model_identity builtin_tools'

/**
 * Chooses the prompt format. vLLM writes the prompts of gpt-oss by harmony's rules and ignores the model's template; so
 * does `auto`.
 */
export function choosePromptFormat(
  requested: PromptFormat | 'auto',
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
