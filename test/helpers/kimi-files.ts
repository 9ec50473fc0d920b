/** The files beside Kimi K2's `tiktoken.model` that define its tokenizer, for a vocabulary of another size. */

/** The named special tokens, by their distance from the vocabulary's end. */
const NAMED: Readonly<Record<number, string>> = {
  ...{ 0: '[BOS]', 1: '[EOS]', 2: '<|im_end|>', 3: '<|im_user|>', 4: '<|im_assistant|>' },
  ...{ 6: '<|start_header_id|>', 7: '<|end_header_id|>', 9: '[EOT]', 10: '<|im_system|>' },
  ...{ 11: '<|tool_calls_section_begin|>', 12: '<|tool_calls_section_end|>', 13: '<|tool_call_begin|>' },
  ...{ 14: '<|tool_call_argument_begin|>', 15: '<|tool_call_end|>', 17: '<|im_middle|>' },
  ...{ 254: '[UNK]', 255: '[PAD]' },
}

/** The constants of `tokenization_kimi.py` that its readers use; everything else of that file is left out. */
const CODE = `
class TikTokenTokenizer:
    num_reserved_special_tokens = 256

    pat_str = "|".join(
        [
            r"""[\\p{Han}]+""",
            r"""[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
            r"""[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
            r"""\\p{N}{1,3}""",
            r""" ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*""",
            r"""\\s*[\\r\\n]+""",
            r"""\\s+(?!\\S)""",
            r"""\\s+""",
        ]
    )

    def name(self, i):
        return f"<|reserved_token_{i}|>"
`

/**
 * Creates the files.
 * @param size the number of tokens in `tiktoken.model`
 */
export function createKimiConfigFiles(
  size: number,
): Record<'tokenizer_config.json' | 'tokenization_kimi.py', string> {
  const flags = { lstrip: false, normalized: false, rstrip: false, single_word: false }
  const added = Object.entries(NAMED).map(([distance, content]) => [
    size + Number(distance),
    { content, ...flags, special: !content.includes('tool_call') },
  ])
  const config = {
    added_tokens_decoder: Object.fromEntries(added),
    auto_map: { AutoTokenizer: ['tokenization_kimi.TikTokenTokenizer', null] },
    bos_token: '[BOS]',
    eos_token: '[EOS]',
    tokenizer_class: 'TikTokenTokenizer',
  }
  return { 'tokenizer_config.json': JSON.stringify(config), 'tokenization_kimi.py': CODE }
}
