/** What a shell may complete, from the option tables. */
import type { CommandSpec, OptionSpec } from '../../proxy/config/option.ts'

interface CompletedOption {
  flag: string
  short: string | undefined
  help: string
  /** What may follow: these words, a file, anything else, or nothing at all. */
  value: readonly string[] | 'file' | 'text' | 'none'
}

export interface CompletedCommand {
  /** As typed after `llm-proxy`; empty for the program itself. */
  path: string
  /** The words that may come next, each with its summary. */
  words: readonly { word: string; summary: string }[]
  options: readonly CompletedOption[]
}

/** The shells whose scripts there are. */
export const SHELLS = ['bash', 'zsh', 'fish'] as const
export type Shell = (typeof SHELLS)[number]

/** The program, its groups of commands and its commands. */
export function completedCommands(specs: readonly CommandSpec[]): CompletedCommand[] {
  const groups = new Set(specs.map(({ name }) => name.split(' ').slice(0, -1).join(' ')))
  const parents = [...new Set(['', ...groups])].map((path) => ({
    path,
    words: wordsAfter(path, specs),
    options: [],
  }))
  const commands = specs.map(({ name, options }) => ({
    path: name,
    words: name === 'completion' ? SHELLS.map((word) => ({ word, summary: '' })) : [],
    options: Object.values(options as Record<string, OptionSpec>).map(completedOption),
  }))
  return [...parents, ...commands]
}

function wordsAfter(path: string, specs: readonly CommandSpec[]): CompletedCommand['words'] {
  const words = new Map<string, string>()
  for (const { name, summary } of specs) {
    if (path !== '' && !name.startsWith(`${path} `)) continue
    const [word = '', ...more] = name.slice(path === '' ? 0 : path.length + 1).split(' ')
    if (!words.has(word)) words.set(word, more.length > 0 ? `Commands of ${word}` : summary)
  }
  return [...words].map(([word, summary]) => ({ word, summary }))
}

function completedOption(option: OptionSpec): CompletedOption {
  return { flag: option.flag, short: option.short, help: option.help, value: valueAfter(option) }
}

function valueAfter(option: OptionSpec): CompletedOption['value'] {
  switch (option.type) {
    case 'boolean':
      return 'none'
    case 'enum':
      return option.values
    case 'path':
    case 'directory':
      return 'file'
    default:
      return 'text'
  }
}
