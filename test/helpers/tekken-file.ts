/** `tekken.json` as Mistral publishes it, from the one that mistral-common contains. */

/** The special tokens of released files, in the order of their ids, with those of the newest ones. */
const TEKKEN_TOKENS = [
  ...[
    '<unk>',
    '<s>',
    '</s>',
    '[INST]',
    '[/INST]',
    '[AVAILABLE_TOOLS]',
    '[/AVAILABLE_TOOLS]',
    '[TOOL_RESULTS]',
  ],
  ...[
    '[/TOOL_RESULTS]',
    '[TOOL_CALLS]',
    '[IMG]',
    '<pad>',
    '[IMG_BREAK]',
    '[IMG_END]',
    '[PREFIX]',
    '[MIDDLE]',
  ],
  ...['[SUFFIX]', '[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]', '[TOOL_CONTENT]', '[ARGS]', '[CALL_ID]', '[THINK]'],
  ...['[/THINK]', '[MODEL_SETTINGS]', '[/MODEL_SETTINGS]'],
]

/** The path of the file of version 3 in mistral-common's packages. */
export const RELEASED_TEKKEN = 'mistral_common/data/tekken_240911.json'

/** Returns a file of another version, with its special tokens. @param released the text of {@link RELEASED_TEKKEN} */
export function createTekkenFile(released: string, version: number): string {
  const tekken = JSON.parse(released)
  tekken.config.version = `v${version}`
  if (version > 7)
    tekken.special_tokens = TEKKEN_TOKENS.map((token_str, rank) => ({ rank, token_str, is_control: true }))
  const effort = { type: 'enum', values: ['none', 'high'], accepts_none: true, default: 'none' }
  if (version >= 15) tekken.model_settings_builder = { reasoning_effort: effort }
  // The configuration of images has another name in newer versions.
  delete tekken.multimodal
  return JSON.stringify(tekken)
}
