/** The scripts that shells read. Each has the whole table in it, so that completing starts no process. */
import type { CompletedCommand, Shell } from './words.ts'

export function completionScript(shell: Shell, commands: readonly CompletedCommand[]): string {
  return SCRIPTS[shell](commands)
}

const SCRIPTS: Record<Shell, (commands: readonly CompletedCommand[]) => string> = {
  bash: bashScript,
  // zsh reads bash's completions through a module of its own.
  zsh: (commands) => `autoload -U +X bashcompinit && bashcompinit\n${bashScript(commands)}`,
  fish: fishScript,
}

function bashScript(commands: readonly CompletedCommand[]): string {
  return `# llm-proxy: completion for bash, or for zsh by bashcompinit
_llm_proxy() {
  local current=\${COMP_WORDS[COMP_CWORD]} previous=\${COMP_WORDS[COMP_CWORD-1]} path= word i words=
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=\${COMP_WORDS[i]}
    case "\${path:+$path }$word" in
${patternOf(commands)}) path="\${path:+$path }$word" ;;
    esac
  done
  case "$path $previous" in
${commands.flatMap(valueCases).join('\n')}
  esac
  case "$path" in
${commands.map(wordCase).join('\n')}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -F _llm_proxy llm-proxy
`
}

/** The paths that lead to commands: every other word is a value. */
function patternOf(commands: readonly CompletedCommand[]): string {
  const paths = commands.filter(({ path }) => path !== '').map(({ path }) => quoted(path))
  return `      ${paths.join(' | ')}`
}

function valueCases({ path, options }: CompletedCommand): string[] {
  return options.flatMap(({ flag, value }) => {
    const pattern = quoted(`${path} --${flag}`)
    if (value === 'none') return []
    if (value === 'file') return [`    ${pattern}) COMPREPLY=($(compgen -f -- "$current")); return ;;`]
    const words = value === 'text' ? '' : value.join(' ')
    return [`    ${pattern}) COMPREPLY=($(compgen -W ${quoted(words)} -- "$current")); return ;;`]
  })
}

function wordCase({ path, words, options }: CompletedCommand): string {
  const all = [...words.map(({ word }) => word), ...options.map(({ flag }) => `--${flag}`), '--help']
  return `    ${quoted(path)}) words=${quoted(all.join(' '))} ;;`
}

function fishScript(commands: readonly CompletedCommand[]): string {
  const lines = commands.flatMap((command) => {
    const when = `-n ${quoted(fishCondition(command, commands))}`
    const words = command.words.map(({ word, summary }) => `${when} -a ${word} -d ${quoted(summary)}`)
    const options = command.options.map(({ flag, short, help, value }) => {
      const letter = short === undefined ? '' : ` -s ${short}`
      return `${when} -l ${flag}${letter}${fishValue(value)} -d ${quoted(help)}`
    })
    return [...words, ...options].map((line) => `complete -c llm-proxy ${line}`)
  })
  return `# llm-proxy: completion for fish\ncomplete -c llm-proxy -f\n${lines.join('\n')}\n`
}

/** The words of the path were typed, and none that leads further on. */
function fishCondition({ path, words }: CompletedCommand, commands: readonly CompletedCommand[]): string {
  const seen = path === '' ? [] : path.split(' ').map((word) => `__fish_seen_subcommand_from ${word}`)
  const isGroup = commands.some(
    (other) => other.path.startsWith(path === '' ? '' : `${path} `) && other.path !== path,
  )
  const further = words.map(({ word }) => word).join(' ')
  return [...seen, ...(isGroup ? [`not __fish_seen_subcommand_from ${further}`] : [])].join('; and ')
}

function fishValue(value: CompletedCommand['options'][number]['value']): string {
  if (value === 'none') return ''
  if (value === 'file') return ' -r -F'
  return value === 'text' ? ' -x' : ` -x -a ${quoted(value.join(' '))}`
}

/** As one word of the three shells. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", `'"'"'`)}'`
}
