import type { AgentTask } from './runner.ts'

/**
 * Returns the variables from which the clients of OpenAI, LiteLLM, Anthropic and Claude Code read a session's URL, key
 * and model.
 */
export function createSessionEnvironment({
  openaiBaseUrl,
  anthropicBaseUrl,
  apiKey,
  modelName,
}: AgentTask): Record<string, string> {
  return {
    OPENAI_BASE_URL: openaiBaseUrl,
    OPENAI_API_BASE: openaiBaseUrl,
    OPENAI_API_KEY: apiKey,
    ANTHROPIC_BASE_URL: anthropicBaseUrl,
    ANTHROPIC_AUTH_TOKEN: apiKey,
    ...(modelName !== undefined && { OPENAI_MODEL: modelName, ANTHROPIC_MODEL: modelName }),
  }
}

/** The variables that programs need in any environment. */
const INHERITED = [
  ...['PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'TERM', 'TZ', 'LANG', 'LANGUAGE', 'LD_LIBRARY_PATH'],
  ...['SSL_CERT_FILE', 'SSL_CERT_DIR', 'REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE', 'NODE_EXTRA_CA_CERTS'],
]

/**
 * Returns the variables of the trainer's environment that programs need. The others are private to the trainer: keys of
 * llm-proxy, tokens of model hubs, clouds and trackers.
 * @param more names of further variables
 */
export function getInheritedEnvironment(more: readonly string[] = []): NodeJS.ProcessEnv {
  const isInherited = (name: string) =>
    INHERITED.includes(name) || name.startsWith('LC_') || more.includes(name)
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => isInherited(name)))
}

/** Converts variables to text. @throws TypeError that names a variable that is neither text, number nor boolean */
export function toTextVariables(variables: Readonly<Record<string, unknown>>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(variables).map(([name, value]) => {
      if (!['string', 'number', 'boolean'].includes(typeof value)) {
        throw new TypeError(`the environment variable ${name} must be text`)
      }
      return [name, String(value)]
    }),
  )
}
