import t from 'tap'
import { testRetries } from '../integration/retried-requests.ts'

testRetries(t, 'local, token mode')
testRetries(t, 'relay, chat mode')
testRetries(t, 'relay, token mode')
