// Command chain generates a chain for `geth import`: genesis.json and chain.rlp. It also writes
// parties.json, which lists the addresses in the chain's logs, the most frequent first.
//
// Each block has a few calls to contracts. A contract only emits four logs in the form of an ERC-20
// transfer. The called contracts follow nearly Zipf's law, so a few contracts have logs in most
// blocks, and most contracts have logs in few blocks.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"log"
	"math/big"
	"math/bits"
	"math/rand"
	"os"
	"path/filepath"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/consensus/beacon"
	"github.com/ethereum/go-ethereum/consensus/ethash"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/params"
)

const (
	// Number of contracts.
	contracts = 4096
	// Number of addresses that send or receive transfers.
	holders = 65536
	// Number of calls per block.
	calls = 2
	// Gas limit of a block.
	gasLimit = 30_000_000
)

// code returns the bytecode of a contract: four times PUSH1 40 CALLDATALOAD, PUSH1 20 CALLDATALOAD,
// PUSH1 0 CALLDATALOAD, PUSH1 20, PUSH1 0, LOG3, and then STOP.
func code() []byte {
	emitLog := common.FromHex("0x60403560203560003560206000a3")
	var bytecode []byte
	for range 4 {
		bytecode = append(bytecode, emitLog...)
	}
	return append(bytecode, 0x00)
}

func main() {
	count := flag.Int("blocks", 100_000, "how many blocks")
	folder := flag.String("out", ".", "folder of genesis.json and chain.rlp")
	flag.Parse()
	if err := run(*count, *folder); err != nil {
		log.Fatal(err)
	}
}

// draw returns a random number below a power of two, by nearly Zipf's law. It first draws an exponent
// p, each equally likely, and then one of the 2^p numbers from 2^p - 1 on.
func draw(random *rand.Rand, below int) int {
	power := random.Intn(bits.Len(uint(below)))
	return (1<<power - 1 + random.Intn(1<<power)) % below
}

func run(count int, folder string) error {
	key, err := crypto.ToECDSA(common.LeftPadBytes([]byte{1}, 32))
	if err != nil {
		return err
	}
	sender := crypto.PubkeyToAddress(key.PublicKey)
	shanghai := uint64(0)
	config := &params.ChainConfig{
		ChainID: big.NewInt(1337), HomesteadBlock: new(big.Int), EIP150Block: new(big.Int),
		EIP155Block: new(big.Int), EIP158Block: new(big.Int), ByzantiumBlock: new(big.Int),
		ConstantinopleBlock: new(big.Int), PetersburgBlock: new(big.Int), IstanbulBlock: new(big.Int),
		MuirGlacierBlock: new(big.Int), BerlinBlock: new(big.Int), LondonBlock: new(big.Int),
		ArrowGlacierBlock: new(big.Int), GrayGlacierBlock: new(big.Int),
		MergeNetsplitBlock: new(big.Int), ShanghaiTime: &shanghai,
		TerminalTotalDifficulty: new(big.Int),
	}
	alloc := types.GenesisAlloc{sender: {Balance: new(big.Int).Lsh(common.Big1, 120)}}
	address := func(index int) common.Address {
		return common.BytesToAddress(crypto.Keccak256([]byte("contract"), big.NewInt(int64(index)).Bytes()))
	}
	for index := range contracts {
		alloc[address(index)] = types.Account{Code: code(), Balance: new(big.Int)}
	}
	genesis := &core.Genesis{
		Config: config, Alloc: alloc, GasLimit: gasLimit, Difficulty: new(big.Int),
		BaseFee: big.NewInt(params.InitialBaseFee), Timestamp: 1_700_000_000,
	}
	text, err := json.Marshal(genesis)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "genesis.json"), text, 0o644); err != nil {
		return err
	}
	transfer := crypto.Keccak256([]byte("Transfer(address,address,uint256)"))
	holder := func(index int) []byte {
		return common.LeftPadBytes(crypto.Keccak256([]byte("holder"), big.NewInt(int64(index)).Bytes())[12:], 32)
	}
	parties := map[string][]string{}
	for index := range contracts {
		parties["contracts"] = append(parties["contracts"], strings.ToLower(address(index).Hex()))
	}
	for index := range 8 {
		parties["holders"] = append(parties["holders"], hexutil.Encode(holder(index)))
	}
	if text, err = json.Marshal(parties); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "parties.json"), text, 0o644); err != nil {
		return err
	}
	random := rand.New(rand.NewSource(1))
	signer := types.LatestSigner(config)
	_, blocks, _ := core.GenerateChainWithGenesis(genesis, beacon.New(ethash.NewFaker()), count,
		func(_ int, block *core.BlockGen) {
			for range calls {
				input := append(append(append([]byte{}, transfer...), holder(draw(random, holders))...),
					holder(draw(random, holders))...)
				to := address(draw(random, contracts))
				block.AddTx(types.MustSignNewTx(key, signer, &types.DynamicFeeTx{
					ChainID: config.ChainID, Nonce: block.TxNonce(sender), To: &to, Gas: 100_000,
					GasFeeCap: new(big.Int).Mul(block.BaseFee(), common.Big2), GasTipCap: new(big.Int),
					Data: input,
				}))
			}
		})
	file, err := os.Create(filepath.Join(folder, "chain.rlp"))
	if err != nil {
		return err
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	for _, block := range blocks {
		if err := block.EncodeRLP(out); err != nil {
			return err
		}
	}
	return out.Flush()
}
