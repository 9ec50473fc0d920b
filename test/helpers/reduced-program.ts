/** A program with the command `serve` alone, whose bundle lacks the products. Each option is given as `--name value`. */
import { run } from '../../src/cli/serve.ts'
import { loadConfig, rejectUnknownEnv } from '../../src/proxy/config/load.ts'
import { SERVE } from '../../src/proxy/config/options/serve.ts'

const args = process.argv.slice(3)
const env: Record<string, string> = {}
for (let i = 0; i < args.length; i += 2)
  env[`LLM_PROXY_${args[i]!.slice(2).toUpperCase().replaceAll('-', '_')}`] = args[i + 1]!

async function serve(): Promise<number> {
  try {
    rejectUnknownEnv([SERVE], env)
    return await run(loadConfig(SERVE, {}, env))
  } catch (error) {
    console.error((error as Error).message)
    return 2
  }
}

void serve().then((code) => {
  process.exitCode = code
})
