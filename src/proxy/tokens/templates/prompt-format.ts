/** What writes a model's prompts: its chat template, or rules that engines follow in its place. */

/** The rules that prompts are written by. */
export type PromptFormat = 'template' | 'harmony'

export interface PromptFormatChoice {
  readonly name: PromptFormat
  readonly chosenBy: 'name' | 'template'
  /** Texts of the template that speak for it. */
  readonly evidence: readonly string[]
}

/** What gpt-oss's template has in it, and no other model's. */
const HARMONY_SIGNS = ['<|start|>assistant', '<|channel|>analysis', '<|channel|>commentary']

/** Names of the variables that harmony's rules know. */
export const HARMONY_VARIABLES = 'reasoning_effort model_identity builtin_tools'

/** vLLM writes the prompts of gpt-oss by harmony's rules, whatever template the model brings; `auto` does as well. */
export function choosePromptFormat(asked: PromptFormat | 'auto', templateSource: string): PromptFormatChoice {
  if (asked !== 'auto') return { name: asked, chosenBy: 'name', evidence: [] }
  const isHarmony = HARMONY_SIGNS.every((sign) => templateSource.includes(sign))
  return {
    name: isHarmony ? 'harmony' : 'template',
    chosenBy: 'template',
    evidence: isHarmony ? HARMONY_SIGNS : [],
  }
}
